#include "net/certificate/certificate.h"

#include <fmt/format.h>

#include <charconv>
#include <ctime>

#include "net/certificate/openssl.h"

namespace weft::net {
namespace {

std::string entry_text(X509_NAME* name, int position) {
  const ASN1_STRING* data = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, position));
  unsigned char* utf8 = nullptr;
  const int size = ASN1_STRING_to_UTF8(&utf8, data);
  if (size < 0) return {};
  std::string out(reinterpret_cast<char*>(utf8), size_t(size));
  OPENSSL_free(utf8);
  return out;
}

// The one entry of its kind; a subject that says a thing twice is refused by the caller.
Result<std::string> single_entry(X509_NAME* name, int nid, const char* what) {
  const int position = X509_NAME_get_index_by_NID(name, nid, -1);
  if (position < 0) return make_error(Code::kInvalid, fmt::format("no {} in the subject", what));
  if (X509_NAME_get_index_by_NID(name, nid, position) >= 0) {
    return make_error(Code::kInvalid, fmt::format("more than one {} in the subject", what));
  }
  return entry_text(name, position);
}

template <typename T>
bool read_number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

bool read_unit(const std::string& unit, CertificateInfo& info) {
  const size_t equals = unit.find('=');
  if (equals == std::string::npos) return false;
  const std::string_view value = std::string_view(unit).substr(equals + 1);
  const std::string_view key = std::string_view(unit).substr(0, equals);
  if (key == "job") return !(info.job = value).empty();
  if (key == "epoch") return read_number(value, info.epoch);
  if (key == "stage") return read_number(value, info.stage) && info.stage >= 0;
  return false;
}

std::string serial_hex(const X509* certificate) {
  ssl::Number number(ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr));
  if (!number) return {};
  char* hex = BN_bn2hex(number.get());
  std::string out = hex != nullptr ? hex : "";
  OPENSSL_free(hex);
  for (char& c : out) c = c >= 'A' && c <= 'F' ? char(c - 'A' + 'a') : c;
  return out;
}

}  // namespace

Result<CertificateInfo> read_certificate(const std::string& pem) {
  WEFT_TRY(auto certificate, ssl::read_certificate_pem(pem, "the certificate"));
  return read_certificate(certificate.get());
}

Result<CertificateInfo> read_certificate(const X509* certificate) {
  X509_NAME* name = X509_get_subject_name(certificate);
  CertificateInfo info;
  WEFT_TRY(info.subject, single_entry(name, NID_commonName, "common name"));
  WEFT_TRY(info.kind, single_entry(name, NID_organizationName, "organisation"));
  int position = -1;
  for (;;) {
    position = X509_NAME_get_index_by_NID(name, NID_organizationalUnitName, position);
    if (position < 0) break;
    const std::string unit = entry_text(name, position);
    if (!read_unit(unit, info)) {
      return make_error(Code::kInvalid, fmt::format("the certificate of {} carries the unit '{}', "
                                                    "which is none of job=, epoch=, stage=",
                                                    info.subject, unit));
    }
  }
  if (info.kind == "worker" && (info.job.empty() || info.stage < 0)) {
    return make_error(Code::kInvalid, fmt::format("the worker certificate of {} names no job and "
                                                  "stage",
                                                  info.subject));
  }
  info.serial_hex = serial_hex(certificate);
  std::tm when{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &when) != 1) {
    return make_error(Code::kInvalid, "the certificate's end of validity is not readable");
  }
  info.not_after_ms = int64_t{timegm(&when)} * 1000;
  return info;
}

Result<CertificateInfo> read_worker_certificate(const X509* certificate) {
  auto info = read_certificate(certificate);
  if (!info.ok()) return make_error(Code::kDenied, std::move(info).error().message);
  if (info->kind != "worker") {
    return make_error(Code::kDenied,
                      fmt::format("the certificate of {} is of kind '{}', not 'worker'",
                                  info->subject, info->kind));
  }
  return info;
}

}  // namespace weft::net
