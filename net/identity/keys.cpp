#include <openssl/ec.h>
#include <openssl/pem.h>
#include <zmq.h>

#include "base/check.h"
#include "net/certificate/openssl.h"
#include "net/identity/authority.h"
#include "net/identity/names.h"

namespace weft::net {

Result<KeyPair> make_key() {
  ssl::Key key(EVP_EC_gen("P-256"));
  if (!key) return make_error(Code::kInternal, "cannot make a P-256 key: " + ssl::take_error());
  ssl::Bio secret(BIO_new(BIO_s_mem())), open(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_PKCS8PrivateKey(secret.get(), key.get(), nullptr, nullptr, 0, nullptr,
                                    nullptr) != 1 ||
      PEM_write_bio_PUBKEY(open.get(), key.get()) != 1) {
    return make_error(Code::kInternal, "cannot write a P-256 key: " + ssl::take_error());
  }
  return KeyPair{ssl::text_of(secret.get()), ssl::text_of(open.get())};
}

CurveKeys make_curve_keys() {
  char open[41], secret[41];
  const int failed = zmq_curve_keypair(open, secret);
  WEFT_CHECK(failed == 0);  // only a libzmq without CURVE fails
  return {open, secret};
}

Result<std::string> curve_public(const std::string& secret_z85) {
  char open[41];
  if (secret_z85.size() != 40 || zmq_curve_public(open, secret_z85.c_str()) != 0) {
    return make_error(Code::kInvalid, "the CURVE secret key is not 40 characters of Z85",
                      "remove the key file; a new key is made at the next start");
  }
  return std::string(open);
}

Result<std::string> make_request_pem(const KeyPair& pair, const std::string& subject) {
  WEFT_TRY_STATUS(check_subject(subject));
  WEFT_TRY(auto key, ssl::read_private_key(pair.private_pem, "the private key"));
  ssl::Request request(X509_REQ_new());
  X509_NAME* name = X509_REQ_get_subject_name(request.get());
  const auto* text = reinterpret_cast<const unsigned char*>(subject.data());
  const bool done = X509_REQ_set_version(request.get(), 0) == 1 &&
                    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, text, int(subject.size()),
                                               -1, 0) == 1 &&
                    X509_REQ_set_pubkey(request.get(), key.get()) == 1 &&
                    X509_REQ_sign(request.get(), key.get(), EVP_sha256()) > 0;
  if (!done) {
    return make_error(Code::kInternal, "cannot sign the certificate request of " + subject + ": " +
                                           ssl::take_error());
  }
  ssl::Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509_REQ(bio.get(), request.get());
  return ssl::text_of(bio.get());
}

Result<std::string> public_key_fingerprint(const std::string& pem) {
  ssl::Key key;
  if (pem.find("CERTIFICATE REQUEST-----") != std::string::npos) {
    WEFT_TRY(auto request, ssl::read_request_pem(pem));
    key.reset(X509_REQ_get_pubkey(request.get()));
  } else {
    WEFT_TRY(auto certificate, ssl::read_certificate_pem(pem, "the certificate"));
    key.reset(X509_get_pubkey(certificate.get()));
  }
  if (!key) return make_error(Code::kInvalid, "no readable public key: " + ssl::take_error());
  return ssl::key_fingerprint(key.get());
}

}  // namespace weft::net
