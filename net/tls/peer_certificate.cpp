#include "net/tls/peer_certificate.h"

#include <fmt/format.h>
#include <openssl/x509.h>

#include <charconv>
#include <optional>

namespace weft::net {
namespace {

std::string entry_text(const X509_NAME_ENTRY* entry) {
  unsigned char* utf8 = nullptr;
  const int size = ASN1_STRING_to_UTF8(&utf8, X509_NAME_ENTRY_get_data(entry));
  if (size < 0) return {};
  std::string text(reinterpret_cast<const char*>(utf8), static_cast<size_t>(size));
  OPENSSL_free(utf8);
  return text;
}

template <typename T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "job=abc" with key "job" gives "abc".
std::optional<std::string> value_of(const std::string& unit, const std::string& key) {
  if (!unit.starts_with(key + "=")) return std::nullopt;
  return unit.substr(key.size() + 1);
}

}  // namespace

Result<PeerCertificate> read_worker_certificate(const X509* certificate) {
  PeerCertificate info;
  std::optional<uint32_t> epoch;
  std::optional<int32_t> stage;
  const X509_NAME* subject = X509_get_subject_name(certificate);
  for (int i = 0; i < X509_NAME_entry_count(subject); ++i) {
    const X509_NAME_ENTRY* entry = X509_NAME_get_entry(subject, i);
    const std::string text = entry_text(entry);
    const int nid = OBJ_obj2nid(X509_NAME_ENTRY_get_object(entry));
    if (nid == NID_commonName) info.peer = text;
    if (nid == NID_organizationName) info.kind = text;
    if (nid != NID_organizationalUnitName) continue;
    if (const auto job = value_of(text, "job")) info.job = *job;
    if (const auto number = value_of(text, "epoch")) epoch = parse_number<uint32_t>(*number);
    if (const auto number = value_of(text, "stage")) stage = parse_number<int32_t>(*number);
  }
  if (info.kind != "worker") {
    return make_error(Code::kDenied,
                      fmt::format("the certificate of {} is of kind '{}', not 'worker'",
                                  info.peer.empty() ? "the other side" : info.peer, info.kind));
  }
  if (info.peer.empty() || info.job.empty() || !epoch || !stage) {
    return make_error(Code::kDenied, "a worker certificate lacks its peer, job, epoch or stage");
  }
  info.epoch = *epoch;
  info.stage = *stage;
  return info;
}

}  // namespace weft::net
