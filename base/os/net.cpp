#include "base/os/net.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>

namespace weft::os {

std::optional<std::string> local_address_towards(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  const int fd = ::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  std::optional<std::string> address;
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  char text[NI_MAXHOST];
  if (::connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0 &&
      ::getnameinfo(reinterpret_cast<sockaddr*>(&local), size, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) == 0) {
    address = text;
  }
  ::close(fd);
  return address;
}

void set_unsent_limit(int socket, size_t bytes) {
  const auto limit = static_cast<uint32_t>(bytes);
  ::setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, sizeof limit);
}

void set_pacing_rate(int socket, uint64_t bytes_per_second) {
  const uint64_t rate = bytes_per_second == 0 ? ~uint64_t{0} : bytes_per_second;
  ::setsockopt(socket, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
}

std::string set_congestion_control(int socket, const std::string& name) {
  if (!name.empty()) {
    ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                 static_cast<socklen_t>(name.size()));
  }
  char granted[16] = {};  // TCP_CA_NAME_MAX
  socklen_t size = sizeof granted;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, granted, &size) != 0) return {};
  return {granted, ::strnlen(granted, sizeof granted)};
}

std::string restart_congestion_control(int socket) {
  const std::string name = set_congestion_control(socket, "");
  // Asked for again, the same one would be left as it is.
  const char* other = name == "reno" ? "cubic" : "reno";
  if (set_congestion_control(socket, other) == name) return name;
  return set_congestion_control(socket, name);
}

BbrPhase bbr_phase(int socket) {
  if (set_congestion_control(socket, "") != "bbr") return BbrPhase::kUnknown;
  tcp_bbr_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_CC_INFO, &info, &size) != 0 || size < sizeof info) {
    return BbrPhase::kUnknown;
  }
  // Before the first acknowledgement it knows no rate, and its gains are not set yet.
  if (info.bbr_bw_lo == 0 && info.bbr_bw_hi == 0) return BbrPhase::kStartup;
  // Gains are in 256ths (tcp_bbr.c): it sends by more than twice what it saw only at first; a
  // window of one way's content is that of a probe.
  constexpr uint32_t kOne = 256;
  if (info.bbr_pacing_gain > 2 * kOne) return BbrPhase::kStartup;
  return info.bbr_cwnd_gain > kOne ? BbrPhase::kSettled : BbrPhase::kProbeRoundTrip;
}

std::optional<TcpProgress> tcp_progress(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      size < offsetof(tcp_info, tcpi_bytes_acked) + sizeof info.tcpi_bytes_acked) {
    return std::nullopt;
  }
  const uint64_t out_of_order = uint64_t{info.tcpi_sacked} * info.tcpi_snd_mss;
  // Of a system that does not tell it the field is not filled; before the first there is none.
  const bool told = size >= offsetof(tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt &&
                    info.tcpi_min_rtt != ~uint32_t{0};
  return TcpProgress{info.tcpi_bytes_acked + out_of_order,
                     info.tcpi_rtt / 1000.0,
                     told ? info.tcpi_min_rtt / 1000.0 : 0,
                     info.tcpi_total_retrans,
                     info.tcpi_notsent_bytes,
                     info.tcpi_ca_state >= TCP_CA_CWR};
}

}  // namespace weft::os
