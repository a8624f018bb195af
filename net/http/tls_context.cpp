#include "net/http/tls_context.h"

#include <fmt/format.h>
#include <openssl/ssl.h>

#include "net/certificate/openssl.h"
#include "net/identity/authority.h"

namespace weft::net {
namespace {

namespace asio_ssl = boost::asio::ssl;

Status use_pair(SSL_CTX* context, const std::string& certificate_pem, const std::string& key_pem) {
  WEFT_TRY(auto certificate, ssl::read_certificate_pem(certificate_pem, "the certificate"));
  WEFT_TRY(auto key, ssl::read_private_key(key_pem, "the private key"));
  if (SSL_CTX_use_certificate(context, certificate.get()) != 1 ||
      SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return make_error(Code::kInvalid,
                      "the private key does not fit the certificate: " + ssl::take_error());
  }
  return {};
}

Status trust(SSL_CTX* context, X509* ca) {
  if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), ca) != 1) {
    return make_error(Code::kInvalid, "the CA certificate cannot be used: " + ssl::take_error());
  }
  return {};
}

void harden(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  // A ticket unread at close makes the kernel reset the connection and lose what was in flight.
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);  // idle connections hold no record buffers
  // A chain is leaf and CA: more is a stranger keeping us busy.
  SSL_CTX_set_verify_depth(context, 2);
}

// The certificate of the presented chain whose fingerprint is the pin, or null.
X509* find_pinned(X509_STORE_CTX* presented, const std::string& pin) {
  STACK_OF(X509)* chain = X509_STORE_CTX_get0_untrusted(presented);
  for (int i = 0; i < sk_X509_num(chain) && i < 8; ++i) {
    X509* candidate = sk_X509_value(chain, i);
    if (ssl::certificate_fingerprint(candidate) == pin) return candidate;
  }
  return nullptr;
}

// Replaces OpenSSL's verification: the pinned certificate is the only trust anchor.
int verify_pin(X509_STORE_CTX* presented, void* pin) {
  X509* anchor = find_pinned(presented, *static_cast<const std::string*>(pin));
  if (anchor == nullptr) {
    X509_STORE_CTX_set_error(presented, X509_V_ERR_CERT_UNTRUSTED);
    return 0;
  }
  ssl::Store store(X509_STORE_new());
  ssl::StoreContext check(X509_STORE_CTX_new());
  if (!store || !check || X509_STORE_add_cert(store.get(), anchor) != 1 ||
      X509_STORE_CTX_init(check.get(), store.get(), X509_STORE_CTX_get0_cert(presented),
                          X509_STORE_CTX_get0_untrusted(presented)) != 1 ||
      X509_STORE_CTX_set_default(check.get(), "ssl_server") != 1) {
    X509_STORE_CTX_set_error(presented, X509_V_ERR_UNSPECIFIED);
    return 0;
  }
  const int good = X509_verify_cert(check.get());
  X509_STORE_CTX_set_error(presented, X509_STORE_CTX_get_error(check.get()));
  return good == 1 ? 1 : 0;
}

void free_pin(void*, void* pin, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<std::string*>(pin);
}

// The pin lives as long as the context.
Status pin_to(SSL_CTX* context, const std::string& fingerprint) {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, free_pin);
  auto pin = std::make_unique<std::string>(fingerprint);
  if (SSL_CTX_set_ex_data(context, index, pin.get()) != 1) {
    return make_error(Code::kInternal, "cannot keep the pin: " + ssl::take_error());
  }
  SSL_CTX_set_cert_verify_callback(context, verify_pin, pin.release());
  return {};
}

Result<asio_ssl::context> fresh(asio_ssl::context::method method) {
  try {
    asio_ssl::context context(method);
    harden(context.native_handle());
    return context;
  } catch (const std::exception& error) {
    return make_error(Code::kInternal, fmt::format("cannot start TLS: {}", error.what()));
  }
}

}  // namespace

Result<asio_ssl::context> server_context(const HttpServerOptions& options) {
  WEFT_TRY(auto context, fresh(asio_ssl::context::tls_server));
  SSL_CTX* raw = context.native_handle();
  WEFT_TRY_STATUS(use_pair(raw, options.certificate_pem, options.key_pem));
  if (options.ca_pem.empty()) {
    if (options.require_client_certificate) {
      return make_error(Code::kInvalid, "client certificates are required but no CA is given");
    }
    return context;
  }
  WEFT_TRY(auto ca, ssl::read_certificate_pem(options.ca_pem, "the CA certificate"));
  WEFT_TRY_STATUS(trust(raw, ca.get()));
  // Sent with the leaf: clients that know only a pin find the CA in the chain.
  SSL_CTX_add1_chain_cert(raw, ca.get());
  SSL_CTX_add_client_CA(raw, ca.get());
  int mode = SSL_VERIFY_PEER;
  if (options.require_client_certificate) mode |= SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
  SSL_CTX_set_verify(raw, mode, nullptr);
  return context;
}

Result<asio_ssl::context> client_context(const HttpClientOptions& options) {
  WEFT_TRY(auto context, fresh(asio_ssl::context::tls_client));
  SSL_CTX* raw = context.native_handle();
  if (!options.certificate_pem.empty()) {
    WEFT_TRY_STATUS(use_pair(raw, options.certificate_pem, options.key_pem));
  }
  if (!options.ca_fingerprint.empty()) {
    WEFT_TRY_STATUS(pin_to(raw, options.ca_fingerprint));
  } else if (!options.ca_pem.empty()) {
    WEFT_TRY(auto ca, ssl::read_certificate_pem(options.ca_pem, "the CA certificate"));
    WEFT_TRY_STATUS(trust(raw, ca.get()));
  } else {
    return make_error(Code::kInvalid, "neither a CA certificate nor a pin is known for the server",
                      "log in again, or join with the whole join address");
  }
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER, nullptr);
  return context;
}

std::string peer_certificate_pem(SSL* connection) {
  ssl::Certificate certificate(SSL_get1_peer_certificate(connection));
  return certificate ? ssl::certificate_to_pem(certificate.get()) : std::string();
}

Status check_server_subject(SSL* connection, const HttpClientOptions& options) {
  WEFT_TRY(auto info, read_certificate(peer_certificate_pem(connection)));
  std::string wanted = options.expect_subject;
  // Only brokers are reached through a pin; any other certificate of the CA is a peer posing as
  // one.
  if (wanted.empty() && !options.ca_fingerprint.empty()) wanted = "broker";
  const bool broker = wanted == "broker";
  const bool good = wanted.empty() || (broker ? info.kind == "broker"
                                              : info.subject == wanted && info.kind != "worker");
  if (good) return {};
  return make_error(Code::kDenied,
                    fmt::format("the server at {}:{} is {} '{}', not '{}'", options.host,
                                options.port, info.kind, info.subject, wanted),
                    "check the address; if it is right, someone else answers there");
}

}  // namespace weft::net
