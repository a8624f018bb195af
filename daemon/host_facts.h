// What this machine tells the cluster about itself.
#pragma once

#include <string>

#include "net/proto/control.pb.h"

namespace weft::daemon {

// Cores, memory, card; device "auto" becomes "cuda:0" where a card answers, else "cpu".
proto::Capabilities host_capabilities(const std::string& device, const std::string& name);

// The address of this machine on the route towards host; "127.0.0.1" where it cannot be told.
std::string route_address(const std::string& host, uint16_t port);

}  // namespace weft::daemon
