// systemd's readiness protocol (sd_notify): a datagram to $NOTIFY_SOCKET; nothing without it.
#pragma once

#include <string_view>

namespace weft::os {

// state: "READY=1", "STOPPING=1", "STATUS=text", lines joined by newlines.
void notify_service_manager(std::string_view state);

}  // namespace weft::os
