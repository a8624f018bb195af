// A cluster's identities and an HTTPS server for tests of net/http and net/blob.
#pragma once

#include <gtest/gtest.h>

#include "base/clock.h"
#include "net/http/http.h"
#include "net/identity/authority.h"

namespace weft::net {

struct Identity {
  std::string certificate_pem, key_pem;
};

class Cluster {
 public:
  explicit Cluster(const std::string& name) : authority_(Authority::open(fresh(name)).value()) {}

  const Authority& authority() const { return authority_; }
  Identity issue(const std::string& subject, const std::string& kind) const {
    const KeyPair key = make_key().value();
    CertificateInfo info;
    info.subject = subject;
    info.kind = kind;
    info.job = "j";
    info.stage = 0;
    const int64_t now_ms = SystemClock().wall_ms();
    info.not_after_ms = now_ms + 3600'000;
    return {authority_.issue(make_request_pem(key, subject).value(), info, now_ms).value(),
            key.private_pem};
  }
  HttpServerOptions server_options(const std::string& subject = "broker",
                                   const std::string& kind = "broker") const {
    const Identity identity = issue(subject, kind);
    HttpServerOptions options;
    options.certificate_pem = identity.certificate_pem;
    options.key_pem = identity.key_pem;
    options.ca_pem = authority_.ca_pem();
    return options;
  }
  HttpClientOptions client_options(uint16_t port) const {
    HttpClientOptions options;
    options.host = "127.0.0.1";
    options.port = port;
    options.ca_pem = authority_.ca_pem();
    options.timeout_ms = 20000;
    return options;
  }
  static os::Path fresh(const std::string& name) {
    const os::Path dir = os::Path(::testing::TempDir()) / ("weft_cluster_" + name);
    EXPECT_TRUE(os::remove_all(dir).ok());
    return dir;
  }

 private:
  Authority authority_;
};

}  // namespace weft::net
