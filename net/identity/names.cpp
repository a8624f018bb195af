#include "net/identity/names.h"

#include <fmt/format.h>

#include <algorithm>

#include "net/certificate/openssl.h"

namespace weft::net {
namespace {

bool is_alnum(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

Status check_id(const std::string& text, const char* what, size_t max) {
  const bool clean = std::all_of(text.begin(), text.end(), [](char c) {
    return is_alnum(c) || c == '.' || c == '_' || c == '-';
  });
  if (text.empty() || text.size() > max || !clean) {
    return make_error(Code::kInvalid,
                      fmt::format("{} of {} characters is not 1 to {} of A-Z a-z 0-9 . _ -", what,
                                  text.size(), max));
  }
  return {};
}

}  // namespace

Status check_subject(const std::string& subject) {
  return check_id(subject, "a subject", 64);
}
Status check_job_id(const std::string& job) {
  WEFT_TRY_STATUS(check_id(job, "a job id", 60));
  if (is_alnum(job.front())) return {};
  return make_error(Code::kInvalid, "a job id begins with a letter or a digit");
}

bool is_ip_address(const std::string& host) {
  if (host.find('\0') != std::string::npos) return false;
  ssl::Owned<ASN1_OCTET_STRING, ASN1_OCTET_STRING_free> address(a2i_IPADDRESS(host.c_str()));
  return address != nullptr;
}

bool is_host_name(const std::string& host) {
  if (host.empty() || host.size() > 253 || host.front() == '-' || host.front() == '.') return false;
  return std::all_of(host.begin(), host.end(),
                     [](char c) { return is_alnum(c) || c == '.' || c == '-' || c == '_'; });
}

}  // namespace weft::net
