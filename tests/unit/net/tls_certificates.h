// Certificates for tests, made through OpenSSL alone, in the layout of net/identity/authority.h.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

namespace weft::net::testing {

struct Paths {
  std::string certificate, key, ca;
};

// A CA in memory; issued files lie under ::testing::TempDir().
class TestCa {
 public:
  TestCa();
  Paths issue(const std::string& peer, const std::string& job, uint32_t epoch, int32_t stage,
              const std::string& kind = "worker") const;

 private:
  std::shared_ptr<EVP_PKEY> key_;
  std::shared_ptr<X509> certificate_;
};

namespace detail {

inline std::atomic<int> serial = 1;

inline void add(X509_NAME* name, const char* field, const std::string& text) {
  X509_NAME_add_entry_by_txt(name, field, MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(text.c_str()), -1, -1, 0);
}

inline std::shared_ptr<EVP_PKEY> make_private_key() {
  return {EVP_EC_gen("P-256"), EVP_PKEY_free};
}

inline std::shared_ptr<X509> make_certificate(EVP_PKEY* key, bool ca) {
  std::shared_ptr<X509> x(X509_new(), X509_free);
  X509_set_version(x.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(x.get()), serial++);
  X509_gmtime_adj(X509_getm_notBefore(x.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(x.get()), 3600);
  X509_set_pubkey(x.get(), key);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints,
                                                  ca ? "critical,CA:TRUE" : "CA:FALSE");
  X509_add_ext(x.get(), extension, -1);
  X509_EXTENSION_free(extension);
  return x;
}

template <typename Write>
std::string save(const std::string& name, const Write& write) {
  const std::string path = ::testing::TempDir() + name;
  FILE* file = std::fopen(path.c_str(), "w");
  EXPECT_NE(file, nullptr);
  EXPECT_EQ(write(file), 1);
  std::fclose(file);
  return path;
}

}  // namespace detail

inline TestCa::TestCa()
    : key_(detail::make_private_key()), certificate_(detail::make_certificate(key_.get(), true)) {
  detail::add(X509_get_subject_name(certificate_.get()), "CN",
              fmt::format("test CA {}", detail::serial.load()));
  X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get()));
  X509_sign(certificate_.get(), key_.get(), EVP_sha256());
}

inline Paths TestCa::issue(const std::string& peer, const std::string& job, uint32_t epoch,
                           int32_t stage, const std::string& kind) const {
  auto key = detail::make_private_key();
  auto x = detail::make_certificate(key.get(), false);
  X509_NAME* name = X509_get_subject_name(x.get());
  detail::add(name, "CN", peer);
  detail::add(name, "O", kind);
  detail::add(name, "OU", "job=" + job);
  detail::add(name, "OU", fmt::format("epoch={}", epoch));
  detail::add(name, "OU", fmt::format("stage={}", stage));
  X509_set_issuer_name(x.get(), X509_get_subject_name(certificate_.get()));
  X509_sign(x.get(), key_.get(), EVP_sha256());
  const std::string stem = fmt::format("weft-tls-{}-{}", getpid(), detail::serial.load());
  Paths paths;
  paths.certificate =
      detail::save(stem + ".pem", [&](FILE* f) { return PEM_write_X509(f, x.get()); });
  paths.key = detail::save(stem + ".key", [&](FILE* f) {
    return PEM_write_PrivateKey(f, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  paths.ca = detail::save(stem + ".ca.pem",
                          [&](FILE* f) { return PEM_write_X509(f, certificate_.get()); });
  return paths;
}

}  // namespace weft::net::testing
