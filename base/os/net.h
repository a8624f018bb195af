// The few facts about this machine's network that need system calls of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace weft::os {

// The local address the kernel would use to reach host (a connected UDP socket, nothing is sent).
std::optional<std::string> local_address_towards(const std::string& host, uint16_t port);

// What a connected TCP socket is allowed to hold of bytes not yet sent, and how fast it may send
// them (bytes a second; 0: unlimited). Without effect where the system knows no such settings.
void set_unsent_limit(int socket, size_t bytes);
void set_pacing_rate(int socket, uint64_t bytes_per_second);
// How the socket reacts to loss and queues: "cubic", "bbr", …; "" asks for the system's own.
// Returns what it has from then on; "" where that cannot be told.
std::string set_congestion_control(int socket, const std::string& name);
// Has the socket's control begin anew, from the window there is. Returns what it has from then on.
std::string restart_congestion_control(int socket);
// What bbr is about; unknown where a socket has another control.
enum class BbrPhase { kUnknown, kStartup, kSettled, kProbeRoundTrip };
BbrPhase bbr_phase(int socket);
struct TcpProgress {
  // Bytes, by the other side's TCP since the connection began; those behind a gap are estimated by
  // their segments.
  uint64_t acknowledged = 0;
  double round_trip_ms = 0;    // smoothed
  double shortest_ms = 0;      // round trip, of the last minutes; 0: unknown
  uint64_t retransmitted = 0;  // segments
  uint64_t unsent = 0;         // bytes in the kernel
  bool repairing = false;      // a loss
};
std::optional<TcpProgress> tcp_progress(int socket);

}  // namespace weft::os
