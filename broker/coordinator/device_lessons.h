// DeviceLessons: what the real runs of some peers say of others with the same device. Pure.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "broker/coordinator/state.h"

namespace weft::broker {

class DeviceLessons {
 public:
  DeviceLessons() = default;  // of nobody: each peer counts by itself
  explicit DeviceLessons(const std::map<std::string, Peer>& peers);

  // Whether they matter to a peer; making them looks at all peers.
  static bool asked_by(const Peer& peer);
  // Real seconds to expect for each that the peer's profile predicts. Its own runs say it, and of a
  // peer without any the middle of what those of its device have shown in five or more and of 1:
  // what one machine shows may be its own. Of two in the middle the one nearer to 1.
  double factor(const Peer& peer) const;
  // Whether runs say anything of it: its own, or those of two others.
  bool taught(const Peer& peer) const;

 private:
  // A device's name, its threads, and the version of weft, which may run operators in another way.
  using Device = std::tuple<std::string, int32_t, std::string>;
  static Device device_of(const job::DeviceProfile& profile);
  const std::vector<double>* shown_by_others(const Peer& peer) const;

  std::map<Device, std::vector<double>> factors_;  // sorted, with the 1
};

}  // namespace weft::broker
