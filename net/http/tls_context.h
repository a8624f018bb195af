// OpenSSL contexts for HTTPS: TLS 1.3 only, certificates from memory, the pin check. Any thread
// may build one; a context belongs to one server or client. Private to net/http.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <string>

#include "base/result.h"
#include "net/http/http.h"

namespace weft::net {

// Client certificates are checked against options.ca_pem where one is presented.
Result<boost::asio::ssl::context> server_context(const HttpServerOptions& options);

// Under a pin the presented chain must verify up to exactly that certificate; else up to ca_pem.
// Without either nothing could be trusted: refused. Host names are never compared.
Result<boost::asio::ssl::context> client_context(const HttpClientOptions& options);

// Whether the certificate the server proved is the one we want to talk to.
Status check_server_subject(SSL* connection, const HttpClientOptions& options);

// PEM of the certificate the other side proved; empty if it gave none.
std::string peer_certificate_pem(SSL* connection);

}  // namespace weft::net
