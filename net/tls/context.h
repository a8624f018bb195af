// The OpenSSL context of a data-plane endpoint: TLS 1.3 only, both sides authenticated against one
// CA, no session tickets.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>

#include "base/result.h"
#include "net/tls/tls_endpoint.h"

namespace weft::net {

Result<std::unique_ptr<boost::asio::ssl::context>> make_tls_context(
    const TlsEndpointOptions& options);

}  // namespace weft::net
