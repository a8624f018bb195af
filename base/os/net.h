// The few facts about this machine's network that need system calls of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weft::os {

// The local address the kernel would use to reach host (a connected UDP socket, nothing is sent).
std::optional<std::string> local_address_towards(const std::string& host, uint16_t port);

}  // namespace weft::os
