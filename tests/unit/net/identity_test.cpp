// Authority, requests, certificates and CURVE keys: what may be issued and what it then says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/hash.h"
#include "net/certificate/openssl.h"
#include "net/identity/authority.h"

namespace weft::net {
namespace {

os::Path fresh_dir(const std::string& name) {
  const os::Path dir = os::Path(::testing::TempDir()) / ("weft_identity_" + name);
  EXPECT_TRUE(os::remove_all(dir).ok());
  return dir;
}

CertificateInfo peer_info(const std::string& subject, int64_t now_ms) {
  CertificateInfo info;
  info.subject = subject;
  info.kind = "peer";
  info.not_after_ms = now_ms + 3600'000;
  return info;
}

class IdentityTest : public ::testing::Test {
 protected:
  Authority authority_ = Authority::open(fresh_dir("ca")).value();
  KeyPair key_ = make_key().value();
  std::string request_ = make_request_pem(key_, "p-1").value();
  int64_t now_ms_ = SystemClock().wall_ms();
};

TEST(AuthorityTest, ReopensTheSameAuthorityAndKeepsItsKeyPrivate) {
  const os::Path dir = fresh_dir("reopen");
  const Authority first = Authority::open(dir).value();
  const Authority second = Authority::open(dir).value();
  EXPECT_EQ(first.ca_pem(), second.ca_pem());
  EXPECT_EQ(first.fingerprint(), second.fingerprint());
  EXPECT_TRUE(is_sha256_hex(first.fingerprint()));
  struct stat info {};
  ASSERT_EQ(::stat((dir / "ca.key").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(AuthorityTest, RefusesAKeyThatIsNotTheCertificates) {
  const os::Path a = fresh_dir("swap_a"), b = fresh_dir("swap_b");
  ASSERT_TRUE(Authority::open(a).ok());
  ASSERT_TRUE(Authority::open(b).ok());
  std::filesystem::copy_file(a / "ca.key", b / "ca.key",
                             std::filesystem::copy_options::overwrite_existing);
  const auto opened = Authority::open(b);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, Code::kCorrupt);
}

TEST_F(IdentityTest, CertificateSaysWhatTheIssuerSaysNotTheRequest) {
  CertificateInfo info = peer_info("p-9", now_ms_);
  info.kind = "worker";
  info.job = "j-1";
  info.epoch = 4000000000u;
  info.stage = 3;
  const auto pem = authority_.issue(request_, info, now_ms_);
  ASSERT_TRUE(pem.ok()) << pem.error().message;
  const CertificateInfo read = read_certificate(*pem).value();
  EXPECT_EQ(read.subject, "p-9");
  EXPECT_EQ(read.kind, "worker");
  EXPECT_EQ(read.job, "j-1");
  EXPECT_EQ(read.epoch, 4000000000u);
  EXPECT_EQ(read.stage, 3);
  EXPECT_EQ(read.serial_hex.size(), 32u);
  EXPECT_NEAR(double(read.not_after_ms), double(info.not_after_ms), 1000);
  EXPECT_EQ(public_key_fingerprint(*pem).value(), public_key_fingerprint(request_).value());
}

TEST_F(IdentityTest, SerialsDiffer) {
  const CertificateInfo info = peer_info("p-1", now_ms_);
  const std::string a = authority_.issue(request_, info, now_ms_).value();
  const std::string b = authority_.issue(request_, info, now_ms_).value();
  EXPECT_NE(read_certificate(a)->serial_hex, read_certificate(b)->serial_hex);
}

TEST_F(IdentityTest, BrokerCertificateCarriesItsHosts) {
  CertificateInfo info = peer_info("broker", now_ms_);
  info.kind = "broker";
  const auto pem =
      authority_.issue(request_, info, now_ms_, {"127.0.0.1", "::1", "broker.example"});
  ASSERT_TRUE(pem.ok()) << pem.error().message;
  const auto certificate = ssl::read_certificate_pem(*pem, "it").value();
  EXPECT_EQ(X509_check_ip_asc(certificate.get(), "::1", 0), 1);
  EXPECT_EQ(X509_check_ip_asc(certificate.get(), "127.0.0.1", 0), 1);
  EXPECT_EQ(X509_check_host(certificate.get(), "broker.example", 0, 0, nullptr), 1);
  EXPECT_EQ(X509_check_host(certificate.get(), "other.example", 0, 0, nullptr), 0);
}

TEST_F(IdentityTest, RefusesHostsThatWouldInjectExtensions) {
  for (const char* host : {"", "a,IP:1.2.3.4", "a b", "@section", "[::1]", "x\ny"}) {
    const auto issued = authority_.issue(request_, peer_info("p-1", now_ms_), now_ms_, {host});
    EXPECT_FALSE(issued.ok()) << host;
  }
}

TEST_F(IdentityTest, RefusesARequestNotSignedByItsKey) {
  // The same request with one byte of its signature changed, still well-formed.
  ssl::Bio bio(BIO_new_mem_buf(request_.data(), int(request_.size())));
  auto request = ssl::read_request_pem(request_).value();
  unsigned char* der = nullptr;
  const int size = i2d_X509_REQ(request.get(), &der);
  std::string bytes(reinterpret_cast<char*>(der), size_t(size));
  OPENSSL_free(der);
  bytes.back() = char(bytes.back() ^ 1);
  std::string encoded(bytes.size() * 2, '\0');
  encoded.resize(size_t(EVP_EncodeBlock(reinterpret_cast<unsigned char*>(encoded.data()),
                                        reinterpret_cast<const unsigned char*>(bytes.data()),
                                        int(bytes.size()))));
  std::string pem = "-----BEGIN CERTIFICATE REQUEST-----\n";
  for (size_t i = 0; i < encoded.size(); i += 64) pem += encoded.substr(i, 64) + "\n";
  pem += "-----END CERTIFICATE REQUEST-----\n";
  const auto issued = authority_.issue(pem, peer_info("p-1", now_ms_), now_ms_);
  ASSERT_FALSE(issued.ok());
  EXPECT_EQ(issued.error().code, Code::kDenied);
}

TEST_F(IdentityTest, RefusesBadSubjectsKindsAndTimes) {
  for (const std::string& subject :
       {std::string(), std::string("a/b"), std::string(65, 'x'), std::string("p\0q", 3)}) {
    EXPECT_FALSE(authority_.issue(request_, peer_info(subject, now_ms_), now_ms_).ok());
    EXPECT_FALSE(make_request_pem(key_, subject).ok());
  }
  CertificateInfo info = peer_info("p-1", now_ms_);
  info.kind = "admin";
  EXPECT_FALSE(authority_.issue(request_, info, now_ms_).ok());
  info = peer_info("p-1", now_ms_);
  info.not_after_ms = now_ms_ - 1;
  EXPECT_FALSE(authority_.issue(request_, info, now_ms_).ok());
}

TEST_F(IdentityTest, GarbageIsAnErrorNotACrash) {
  for (const std::string& text :
       {std::string(), std::string("x"), std::string(100000, 'A'),
        std::string("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")}) {
    EXPECT_FALSE(read_certificate(text).ok());
    EXPECT_FALSE(public_key_fingerprint(text).ok());
    EXPECT_FALSE(authority_.issue(text, peer_info("p-1", now_ms_), now_ms_).ok());
  }
}

TEST(CurveKeysTest, PublicFollowsFromSecret) {
  const CurveKeys keys = make_curve_keys();
  EXPECT_EQ(keys.public_z85.size(), 40u);
  EXPECT_EQ(curve_public(keys.secret_z85).value(), keys.public_z85);
  EXPECT_FALSE(curve_public("short").ok());
  EXPECT_FALSE(curve_public(std::string(40, '"')).ok());
}

TEST(JoinAddressTest, RoundTrips) {
  for (const char* host : {"broker.example", "127.0.0.1", "2001:db8::1"}) {
    const JoinAddress address{host, 7400, std::string(64, 'a'), "tok_EN-1.~"};
    const auto parsed = parse_join_address(to_text(address));
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    EXPECT_EQ(parsed->host, host);
    EXPECT_EQ(parsed->port, 7400);
    EXPECT_EQ(parsed->ca_fingerprint, address.ca_fingerprint);
    EXPECT_EQ(parsed->token, address.token);
  }
}

TEST(JoinAddressTest, RefusesWhatIsNotExactlyOne) {
  const std::string pin(64, 'a');
  for (const std::string& text : {std::string(),
                                  std::string("weft://"),
                                  "http://h:1/" + pin + "/t",
                                  "weft://h/" + pin + "/t",
                                  "weft://h:0/" + pin + "/t",
                                  "weft://h:65536/" + pin + "/t",
                                  "weft://h:1x/" + pin + "/t",
                                  "weft://:1/" + pin + "/t",
                                  "weft://::1:1/" + pin + "/t",
                                  "weft://[h]:1/" + pin + "/t",
                                  "weft://[::1]1/" + pin + "/t",
                                  "weft://[::1:1/" + pin + "/t",
                                  "weft://h:1/" + pin,
                                  "weft://h:1/" + pin + "/",
                                  "weft://h:1/" + pin + "/t/u",
                                  "weft://h:1/" + pin + "/t ",
                                  "weft://h:1/" + std::string(64, 'A') + "/t",
                                  "weft://h:1/" + std::string(63, 'a') + "/t",
                                  "weft://u@h:1/" + pin + "/t",
                                  " weft://h:1/" + pin + "/t"}) {
    EXPECT_FALSE(parse_join_address(text).ok()) << text;
  }
}

}  // namespace
}  // namespace weft::net
