// Who is who: the cluster's certificate authority, keys, requests and certificates (X.509, ECDSA
// P-256 through OpenSSL), CURVE keys for the control plane, join addresses. Private keys are
// written 0600. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/os/file.h"
#include "base/result.h"
#include "net/certificate/certificate.h"

namespace weft::net {

struct KeyPair {
  std::string private_pem;
  std::string public_pem;
};
Result<KeyPair> make_key();

struct CurveKeys {
  std::string public_z85;  // 40 characters
  std::string secret_z85;
};
CurveKeys make_curve_keys();
Result<std::string> curve_public(const std::string& secret_z85);

// A certificate request for a subject id, signed by key.
Result<std::string> make_request_pem(const KeyPair& key, const std::string& subject);

Result<std::string> public_key_fingerprint(
    const std::string& request_or_certificate_pem);  // sha256 hex

class Authority {
 public:
  // Loads the CA under dir (ca.pem, ca.key 0600) or makes it.
  static Result<Authority> open(const os::Path& dir);

  const std::string& ca_pem() const { return ca_pem_; }
  // SHA-256 over the CA certificate's DER, hexadecimal: the pin in join addresses.
  const std::string& fingerprint() const { return fingerprint_; }

  // Issues a certificate for a request's key; what the certificate says comes from `info`, never
  // from the request. hosts: subject alternative names (broker only).
  Result<std::string> issue(const std::string& request_pem, const CertificateInfo& info,
                            int64_t now_ms, const std::vector<std::string>& hosts = {}) const;

 private:
  std::string ca_pem_, key_pem_, fingerprint_;
};

// weft://host:port/<ca fingerprint>/<token>
struct JoinAddress {
  std::string host;
  uint16_t port = 0;
  std::string ca_fingerprint;
  std::string token;
};
std::string to_text(const JoinAddress& address);
Result<JoinAddress> parse_join_address(const std::string& text);

}  // namespace weft::net
