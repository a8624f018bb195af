#include "broker/coordinator/device_lessons.h"

#include <algorithm>
#include <cmath>

namespace weft::broker {

DeviceLessons::Device DeviceLessons::device_of(const job::DeviceProfile& profile) {
  return {profile.device_name, profile.threads, profile.version};
}

bool DeviceLessons::asked_by(const Peer& peer) {
  return peer.profile && peer.correction.steps == 0 && peer.slowness.factor <= 0;
}

DeviceLessons::DeviceLessons(const std::map<std::string, Peer>& peers) {
  for (const auto& [id, peer] : peers) {
    if (!peer.profile || peer.correction.steps < kTrustedSteps) continue;
    std::vector<double>& shown = factors_[device_of(*peer.profile)];
    if (shown.empty()) shown.push_back(1);
    shown.push_back(peer.correction.factor);
  }
  for (auto& [device, shown] : factors_) std::sort(shown.begin(), shown.end());
}

const std::vector<double>* DeviceLessons::shown_by_others(const Peer& peer) const {
  if (!peer.profile) return nullptr;
  const auto found = factors_.find(device_of(*peer.profile));
  return found == factors_.end() ? nullptr : &found->second;
}

double DeviceLessons::factor(const Peer& peer) const {
  if (peer.correction.steps > 0) return peer.correction.factor;
  const std::vector<double>* shown = shown_by_others(peer);
  if (shown == nullptr) return 1;
  const double lower = (*shown)[(shown->size() - 1) / 2], upper = (*shown)[shown->size() / 2];
  return std::abs(std::log(lower)) <= std::abs(std::log(upper)) ? lower : upper;
}

bool DeviceLessons::taught(const Peer& peer) const {
  if (peer.correction.steps > 0) return true;
  const std::vector<double>* shown = shown_by_others(peer);
  return shown != nullptr && shown->size() > 2;
}

}  // namespace weft::broker
