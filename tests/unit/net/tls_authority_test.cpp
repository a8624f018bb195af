// The certificates that net/identity issues are the ones the data plane reads.
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "base/clock.h"
#include "net/certificate/certificate.h"
#include "net/identity/authority.h"

namespace weft::net {
namespace {

Result<CertificateInfo> read_pem(const std::string& pem) {
  BIO* bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  X509* x = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  auto info = read_worker_certificate(x);
  X509_free(x);
  BIO_free(bio);
  return info;
}

TEST(TlsAuthority, IssuedWorkerCertificatesAreRead) {
  const auto authority = Authority::open(::testing::TempDir() + "tls-authority");
  ASSERT_TRUE(authority.ok()) << authority.error().text();
  const auto key = make_key();
  ASSERT_TRUE(key.ok());
  const auto request = make_request_pem(*key, "peer-7");
  ASSERT_TRUE(request.ok());
  const int64_t now = SystemClock().wall_ms();
  CertificateInfo info;
  info.subject = "peer-7";
  info.kind = "worker";
  info.job = "job-42";
  info.epoch = 3;
  info.stage = 2;
  info.not_after_ms = now + 3600 * 1000;
  const auto pem = authority->issue(*request, info, now);
  ASSERT_TRUE(pem.ok()) << pem.error().text();
  const auto read = read_pem(*pem);
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(read->subject, "peer-7");
  EXPECT_EQ(read->job, "job-42");
  EXPECT_EQ(read->epoch, 3u);
  EXPECT_EQ(read->stage, 2);

  info.kind = "peer";
  info.job.clear();
  const auto daemon = authority->issue(*request, info, now);
  ASSERT_TRUE(daemon.ok()) << daemon.error().text();
  EXPECT_EQ(read_pem(*daemon).error().code, Code::kDenied) << "a daemon's key opens no data link";
}

}  // namespace
}  // namespace weft::net
