#include "net/frame/link_rules.h"

namespace weft::net {

LinkRules::LinkRules(int32_t stage, const std::vector<EdgeLink>& edges,
                     const std::vector<int32_t>& control_neighbours)
    : stage_(stage) {
  for (const EdgeLink& e : edges) {
    if (e.from != stage && e.to != stage) continue;
    neighbours_.insert(e.from == stage ? e.to : e.from);
    credits_[{{MessageKind::kActivation, e.edge}, e.from, e.to}] = e.activation_credits;
    credits_[{{MessageKind::kEvalActivation, e.edge}, e.from, e.to}] = e.activation_credits;
    credits_[{{MessageKind::kGradient, e.edge}, e.to, e.from}] = e.gradient_credits;
  }
  neighbours_.insert(control_neighbours.begin(), control_neighbours.end());
  neighbours_.erase(stage);
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
