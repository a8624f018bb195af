#include "net/identity/authority.h"

#include <fmt/format.h>
#include <openssl/pem.h>
#include <openssl/rand.h>

#include <ctime>

#include "base/clock.h"
#include "net/certificate/openssl.h"
#include "net/identity/names.h"

namespace weft::net {
namespace {

constexpr int64_t kSkewSeconds = 300;  // clocks of volunteers are off by minutes
constexpr int64_t kDaySeconds = 86400;
constexpr int64_t kCaSeconds = 10 * 365 * kDaySeconds;

bool set_random_serial(X509* certificate) {
  unsigned char bytes[16];
  if (RAND_bytes(bytes, sizeof bytes) != 1) return false;
  bytes[0] = static_cast<unsigned char>((bytes[0] & 0x7f) | 0x40);  // positive, always 128 bits
  ssl::Number number(BN_bin2bn(bytes, sizeof bytes, nullptr));
  return BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool add_entry(X509_NAME* name, const char* field, const std::string& text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  return X509_NAME_add_entry_by_txt(name, field, MBSTRING_UTF8, bytes, int(text.size()), -1, 0) ==
         1;
}

bool add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  ssl::Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool set_validity(X509* certificate, int64_t from_s, int64_t to_s) {
  return ASN1_TIME_set(X509_getm_notBefore(certificate), time_t(from_s)) != nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), time_t(to_s)) != nullptr;
}

bool fill_ca(X509* ca, EVP_PKEY* key, int64_t now_s) {
  X509_NAME* name = X509_get_subject_name(ca);
  return X509_set_version(ca, 2) == 1 && set_random_serial(ca) &&
         set_validity(ca, now_s - kDaySeconds, now_s + kCaSeconds) &&
         add_entry(name, "O", "weft") && add_entry(name, "CN", "weft cluster CA") &&
         X509_set_issuer_name(ca, name) == 1 && X509_set_pubkey(ca, key) == 1 &&
         add_extension(ca, ca, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
         add_extension(ca, ca, NID_key_usage, "critical,keyCertSign,cRLSign") &&
         add_extension(ca, ca, NID_subject_key_identifier, "hash") &&
         X509_sign(ca, key, EVP_sha256()) > 0;
}

bool add_subject(X509* certificate, const CertificateInfo& info) {
  X509_NAME* name = X509_get_subject_name(certificate);
  bool done = add_entry(name, "CN", info.subject) && add_entry(name, "O", info.kind);
  if (info.kind == "worker") {
    done = done && add_entry(name, "OU", "job=" + info.job) &&
           add_entry(name, "OU", fmt::format("epoch={}", info.epoch)) &&
           add_entry(name, "OU", fmt::format("stage={}", info.stage));
  }
  return done;
}

Result<std::string> alternative_names(const std::vector<std::string>& hosts) {
  std::string names;
  for (const std::string& host : hosts) {
    const bool address = is_ip_address(host);
    if (!address && !is_host_name(host)) {
      return make_error(Code::kInvalid,
                        fmt::format("'{}' is neither an IP address nor a host name", host),
                        "set the advertised host to an address without brackets or port");
    }
    names += fmt::format("{}{}:{}", names.empty() ? "" : ",", address ? "IP" : "DNS", host);
  }
  return names;
}

Status check_info(const CertificateInfo& info, int64_t now_ms) {
  WEFT_TRY_STATUS(check_subject(info.subject));
  if (info.kind != "broker" && info.kind != "peer" && info.kind != "worker") {
    return make_error(Code::kInvalid, fmt::format("unknown certificate kind '{}'", info.kind));
  }
  if (info.kind == "worker") {
    WEFT_TRY_STATUS(check_job_id(info.job));
    if (info.stage < 0) return make_error(Code::kInvalid, "a worker certificate needs a stage");
  }
  if (info.not_after_ms <= now_ms) {
    return make_error(Code::kInvalid, fmt::format("the certificate of {} would end before it is "
                                                  "issued",
                                                  info.subject));
  }
  return {};
}

struct Pair {
  std::string ca_pem, key_pem;
};

Result<Pair> make_ca(const os::Path& dir) {
  WEFT_TRY(KeyPair pair, make_key());
  WEFT_TRY(auto key, ssl::read_private_key(pair.private_pem, "the CA key"));
  ssl::Certificate ca(X509_new());
  if (!fill_ca(ca.get(), key.get(), SystemClock().wall_ms() / 1000)) {
    return make_error(Code::kInternal, "cannot make the CA certificate: " + ssl::take_error());
  }
  Pair out{ssl::certificate_to_pem(ca.get()), pair.private_pem};
  // The key first: a crash between the two leaves a key without certificate, which is made anew.
  WEFT_TRY_STATUS(os::write_file_atomic(dir / "ca.key", std::string_view(out.key_pem), 0600));
  WEFT_TRY_STATUS(os::write_file_atomic(dir / "ca.pem", std::string_view(out.ca_pem), 0644));
  return out;
}

}  // namespace

Result<Authority> Authority::open(const os::Path& dir) {
  WEFT_TRY_STATUS(os::make_directories(dir, 0700));
  Pair pair;
  std::error_code ignored;
  if (std::filesystem::exists(dir / "ca.pem", ignored)) {
    WEFT_TRY(pair.ca_pem, os::read_file(dir / "ca.pem", ssl::kMaxPemBytes));
    WEFT_TRY(pair.key_pem, os::read_file(dir / "ca.key", ssl::kMaxPemBytes));
  } else {
    WEFT_TRY(pair, make_ca(dir));
  }
  WEFT_TRY(auto ca, ssl::read_certificate_pem(pair.ca_pem, (dir / "ca.pem").string()));
  WEFT_TRY(auto key, ssl::read_private_key(pair.key_pem, (dir / "ca.key").string()));
  if (X509_check_private_key(ca.get(), key.get()) != 1) {
    ssl::take_error();
    return make_error(Code::kCorrupt,
                      fmt::format("ca.key in {} is not the key of ca.pem", dir.string()),
                      "restore both files from one backup, or remove both: every peer must then "
                      "join again");
  }
  Authority authority;
  authority.fingerprint_ = ssl::certificate_fingerprint(ca.get());
  authority.ca_pem_ = std::move(pair.ca_pem);
  authority.key_pem_ = std::move(pair.key_pem);
  return authority;
}

Result<std::string> Authority::issue(const std::string& request_pem, const CertificateInfo& info,
                                     int64_t now_ms, const std::vector<std::string>& hosts) const {
  WEFT_TRY_STATUS(check_info(info, now_ms));
  WEFT_TRY(std::string names, alternative_names(hosts));
  WEFT_TRY(auto request, ssl::read_request_pem(request_pem));
  EVP_PKEY* subject_key = X509_REQ_get0_pubkey(request.get());
  if (subject_key == nullptr || X509_REQ_verify(request.get(), subject_key) != 1) {
    ssl::take_error();
    return make_error(Code::kDenied, "the certificate request is not signed by its own key");
  }
  char group[32] = {};
  size_t size = 0;
  if (EVP_PKEY_get_group_name(subject_key, group, sizeof group, &size) != 1 ||
      std::string(group) != "prime256v1") {
    ssl::take_error();
    return make_error(Code::kRefused, "the key of the certificate request is not on P-256");
  }
  WEFT_TRY(auto ca, ssl::read_certificate_pem(ca_pem_, "the CA certificate"));
  WEFT_TRY(auto key, ssl::read_private_key(key_pem_, "the CA key"));
  ssl::Certificate out(X509_new());
  const bool done =
      X509_set_version(out.get(), 2) == 1 && set_random_serial(out.get()) &&
      set_validity(out.get(), now_ms / 1000 - kSkewSeconds, info.not_after_ms / 1000) &&
      add_subject(out.get(), info) &&
      X509_set_issuer_name(out.get(), X509_get_subject_name(ca.get())) == 1 &&
      X509_set_pubkey(out.get(), subject_key) == 1 &&
      add_extension(out.get(), ca.get(), NID_basic_constraints, "critical,CA:FALSE") &&
      add_extension(out.get(), ca.get(), NID_key_usage, "critical,digitalSignature") &&
      add_extension(out.get(), ca.get(), NID_ext_key_usage, "serverAuth,clientAuth") &&
      add_extension(out.get(), ca.get(), NID_subject_key_identifier, "hash") &&
      add_extension(out.get(), ca.get(), NID_authority_key_identifier, "keyid:always") &&
      (names.empty() || add_extension(out.get(), ca.get(), NID_subject_alt_name, names)) &&
      X509_sign(out.get(), key.get(), EVP_sha256()) > 0;
  if (!done) {
    return make_error(Code::kInternal, fmt::format("cannot issue the certificate of {}: {}",
                                                   info.subject, ssl::take_error()));
  }
  return ssl::certificate_to_pem(out.get());
}

}  // namespace weft::net
