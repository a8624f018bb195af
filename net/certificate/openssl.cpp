#include "net/certificate/openssl.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include "base/hash.h"

namespace weft::net::ssl {
namespace {

// Without it OpenSSL would ask for the passphrase of an encrypted key on the terminal.
int no_passphrase(char*, int, int, void*) {
  return 0;
}

Result<Bio> open_pem(std::string_view pem, const std::string& what) {
  if (pem.empty()) return make_error(Code::kInvalid, what + " is empty");
  if (pem.size() > kMaxPemBytes) {
    return make_error(Code::kTooLarge, what + " has " + std::to_string(pem.size()) +
                                           " bytes, the limit is " + std::to_string(kMaxPemBytes));
  }
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

Error bad_pem(const std::string& what, const char* kind) {
  return make_error(Code::kInvalid, what + " is not a PEM " + kind + ": " + take_error());
}

std::string hash_and_free(unsigned char* der, int size) {
  if (size <= 0) return {};
  std::string out = sha256_hex({reinterpret_cast<const std::byte*>(der), size_t(size)});
  OPENSSL_free(der);
  return out;
}

}  // namespace

std::string take_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "unknown error";
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : "error " + std::to_string(code);
}

Result<Key> read_private_key(std::string_view pem, const std::string& what) {
  WEFT_TRY(auto bio, open_pem(pem, what));
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr));
  if (!key) return bad_pem(what, "private key");
  return key;
}

Result<Certificate> read_certificate_pem(std::string_view pem, const std::string& what) {
  WEFT_TRY(auto bio, open_pem(pem, what));
  Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, no_passphrase, nullptr));
  if (!certificate) return bad_pem(what, "certificate");
  return certificate;
}

Result<Request> read_request_pem(std::string_view pem) {
  WEFT_TRY(auto bio, open_pem(pem, "the certificate request"));
  Request request(PEM_read_bio_X509_REQ(bio.get(), nullptr, no_passphrase, nullptr));
  if (!request) return bad_pem("the certificate request", "request");
  return request;
}

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return size > 0 ? std::string(data, size_t(size)) : std::string();
}

std::string certificate_to_pem(X509* certificate) {
  Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), certificate);
  return text_of(bio.get());
}

std::string certificate_fingerprint(X509* certificate) {
  unsigned char* der = nullptr;
  const int size = i2d_X509(certificate, &der);
  return hash_and_free(der, size);
}

std::string key_fingerprint(EVP_PKEY* key) {
  unsigned char* der = nullptr;
  const int size = i2d_PUBKEY(key, &der);
  return hash_and_free(der, size);
}

}  // namespace weft::net::ssl
