#include "net/frame/link_rules.h"

#include <algorithm>

#include "base/hash.h"

namespace weft::net {

LinkRules::LinkRules(int32_t stage, const std::vector<EdgeLink>& edges,
                     const std::vector<int32_t>& control_neighbours)
    : stage_(stage) {
  for (const EdgeLink& e : edges) {
    if (e.from != stage && e.to != stage) continue;
    const int32_t other = e.from == stage ? e.to : e.from;
    neighbours_.insert(other);
    edges_[other].push_back(e);
    credits_[{{MessageKind::kActivation, e.edge}, e.from, e.to}] = e.activation_credits;
    credits_[{{MessageKind::kEvalActivation, e.edge}, e.from, e.to}] = e.activation_credits;
    credits_[{{MessageKind::kGradient, e.edge}, e.to, e.from}] = e.gradient_credits;
  }
  neighbours_.insert(control_neighbours.begin(), control_neighbours.end());
  neighbours_.erase(stage);
  for (auto& [other, shared] : edges_) {
    std::sort(shared.begin(), shared.end(),
              [](const EdgeLink& a, const EdgeLink& b) { return a.edge < b.edge; });
  }
}

uint64_t LinkRules::digest(int32_t other) const {
  std::vector<uint64_t> all;
  const auto found = edges_.find(other);
  if (found == edges_.end()) return xxh3(std::as_bytes(std::span(all)));
  for (const EdgeLink& e : found->second) {
    for (const int32_t part : {e.from, e.to, e.activation_credits, e.gradient_credits, e.value}) {
      all.push_back(static_cast<uint64_t>(part));
    }
    all.insert(all.end(), {e.edge, e.activation_bytes, e.gradient_bytes});
  }
  return xxh3(std::as_bytes(std::span(all)));
}

int32_t LinkRules::credits(const Channel& channel, int32_t from, int32_t to) const {
  if (from != stage_ && to != stage_) return 0;
  if (!neighbours_.contains(from == stage_ ? to : from)) return 0;
  const auto it = credits_.find({channel, from, to});
  if (it != credits_.end()) return it->second;
  // An edge of training goes one way only; what is not listed is not allowed.
  if (channel.kind == MessageKind::kActivation || channel.kind == MessageKind::kGradient) return 0;
  return channel.edge < kMaxPlainEdge ? kPlainCredits : 0;
}

}  // namespace weft::net
