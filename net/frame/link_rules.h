// LinkRules: what one stage may send to and receive from another, and how many messages of a
// channel may be in flight: the plan's edges, seen from one stage. Immutable after construction.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "net/link_plan.h"
#include "net/message.h"

namespace weft::net {

// Messages that share one credit limit, between two given stages in one direction.
struct Channel {
  MessageKind kind = MessageKind::kActivation;
  uint32_t edge = 0;
  auto operator<=>(const Channel&) const = default;
};
inline Channel channel_of(const MessageKey& key) {
  return {key.kind, key.edge};
}

// Credits of channels that belong to no edge: norms, clip factors, tied groups, and evaluation
// edges that training does not have. A step sends one message of each.
constexpr int32_t kPlainCredits = 4;
// Tied groups are numbered from 0; a larger number is a lie that would open channels without end.
constexpr uint32_t kMaxPlainEdge = 1 << 14;

class LinkRules {
 public:
  LinkRules(int32_t stage, const std::vector<EdgeLink>& edges,
            const std::vector<int32_t>& control_neighbours);

  const std::set<int32_t>& neighbours() const { return neighbours_; }
  // Credits of the channel from one stage to another; 0: no such message may travel there.
  int32_t credits(const Channel& channel, int32_t from, int32_t to) const;
  // Of the edges with another stage, all that EdgeLink says: two stages that were cut alike have
  // the same. Programs of two versions may cut one plan differently, and would then take one value
  // for another.
  uint64_t digest(int32_t other) const;

 private:
  struct Route {
    Channel channel;
    int32_t from = 0, to = 0;
    auto operator<=>(const Route&) const = default;
  };
  std::set<int32_t> neighbours_;
  int32_t stage_;
  std::map<int32_t, std::vector<EdgeLink>> edges_;  // by the other stage, in the order of ids
  std::map<Route, int32_t> credits_;
};

}  // namespace weft::net
