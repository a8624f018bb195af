#include "net/tls/context.h"

#include <fmt/format.h>

namespace weft::net {
namespace {
namespace ssl = boost::asio::ssl;

Status check(const boost::system::error_code& ec, const std::string& what) {
  if (!ec) return {};
  return make_error(Code::kInvalid, fmt::format("cannot use {}: {}", what, ec.message()),
                    "check that certificate, key and CA files belong together");
}

}  // namespace

Result<std::unique_ptr<ssl::context>> make_tls_context(const TlsEndpointOptions& options) {
  auto context = std::make_unique<ssl::context>(ssl::context::tls);
  SSL_CTX* handle = context->native_handle();
  SSL_CTX_set_min_proto_version(handle, TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(handle, TLS1_3_VERSION);
  // Tickets a client never reads make its close() a reset, which destroys data under way.
  SSL_CTX_set_num_tickets(handle, 0);
  SSL_CTX_set_session_cache_mode(handle, SSL_SESS_CACHE_OFF);
  // One certificate serves both roles; what it may do is checked against the plan.
  SSL_CTX_set_purpose(handle, X509_PURPOSE_ANY);
  SSL_CTX_set_ciphersuites(handle,
                           "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:"
                           "TLS_AES_256_GCM_SHA384");

  boost::system::error_code ec;
  context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, ec);
  WEFT_TRY_STATUS(check(ec, "peer verification"));
  context->load_verify_file(options.ca_path, ec);
  WEFT_TRY_STATUS(check(ec, "CA file " + options.ca_path));
  context->use_certificate_chain_file(options.certificate_path, ec);
  WEFT_TRY_STATUS(check(ec, "certificate file " + options.certificate_path));
  context->use_private_key_file(options.key_path, ssl::context::pem, ec);
  WEFT_TRY_STATUS(check(ec, "key file " + options.key_path));
  if (SSL_CTX_check_private_key(handle) != 1) {
    return make_error(Code::kInvalid, fmt::format("key {} does not belong to certificate {}",
                                                  options.key_path, options.certificate_path));
  }
  return context;
}

}  // namespace weft::net
