// Owning pointers and small readers over OpenSSL's objects, shared by the files of net/ that touch
// certificates. Any thread.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weft::net::ssl {

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
template <typename T, auto Free>
using Owned = std::unique_ptr<T, Deleter<Free>>;

using Bio = Owned<BIO, BIO_free_all>;
using Key = Owned<EVP_PKEY, EVP_PKEY_free>;
using Certificate = Owned<X509, X509_free>;
using Request = Owned<X509_REQ, X509_REQ_free>;
using Extension = Owned<X509_EXTENSION, X509_EXTENSION_free>;
using Number = Owned<BIGNUM, BN_free>;
using Store = Owned<X509_STORE, X509_STORE_free>;
using StoreContext = Owned<X509_STORE_CTX, X509_STORE_CTX_free>;

// A PEM text longer than this is refused unread.
inline constexpr size_t kMaxPemBytes = size_t{64} << 10;

// The oldest queued OpenSSL error as text; clears the queue.
std::string take_error();

// `what` names the object in messages.
Result<Key> read_private_key(std::string_view pem, const std::string& what);
Result<Certificate> read_certificate_pem(std::string_view pem, const std::string& what);
Result<Request> read_request_pem(std::string_view pem);

std::string certificate_to_pem(X509* certificate);
// SHA-256 of the DER form, hexadecimal; empty if it has none.
std::string certificate_fingerprint(X509* certificate);
// SHA-256 of the DER form of a public key.
std::string key_fingerprint(EVP_PKEY* key);

// Everything written to a memory BIO.
std::string text_of(BIO* bio);

}  // namespace weft::net::ssl
