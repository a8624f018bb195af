// Peers that come and go, by chance or by a recorded trace, and sites that are cut off.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "simulate/engine.h"

namespace weft::simulate {

namespace {

constexpr uint64_t kChurnStream = 100;

}  // namespace

void Engine::start_churn() {
  for (size_t i = 0; i < scenario_.churn.size(); ++i) {
    const ChurnSpec& churn = scenario_.churn[i];
    if (!churn.trace.empty()) {
      follow_trace(churn, options_.traces.at(i));
      continue;
    }
    for (size_t peer = 0; peer < daemons_.size(); ++peer) {
      const auto group = static_cast<size_t>(world_.peer(static_cast<int32_t>(peer)).group);
      if (!churn.group.empty() && scenario_.peers[group].name != churn.group) continue;
      live_and_go(static_cast<int32_t>(peer), churn, i);
    }
  }
}

void Engine::arrive(int32_t peer) {
  if (daemon(peer).alive) return;
  ++outcome_.returns;
  start_daemon(peer);
}

void Engine::depart(int32_t peer, const ChurnSpec& churn, Rng& rng) {
  if (rng.uniform() < churn.leave_share) {
    leave(peer);
  } else {
    vanish(peer);
  }
}

// Each peer draws from a stream of its own: what others do changes nothing for it.
void Engine::live_and_go(int32_t peer, const ChurnSpec& churn, uint64_t number) {
  auto rng = std::make_shared<Rng>(
      derive_seed({scenario_.seed, kChurnStream + number, static_cast<uint64_t>(peer)}));
  auto go = std::make_shared<std::function<void()>>();
  *go = [this, peer, &churn, rng, again = std::weak_ptr(go)] {
    queue_.after(exponential(*rng, churn.life_s), [this, peer, &churn, rng, go = again.lock()] {
      depart(peer, churn, *rng);
      if (churn.away_s <= 0) return;
      queue_.after(exponential(*rng, churn.away_s), [this, peer, go] {
        arrive(peer);
        (*go)();
      });
    });
  };
  (*go)();
}

void Engine::follow_trace(const ChurnSpec& churn, const std::vector<TraceRow>& rows) {
  std::vector<int32_t> members;
  for (size_t peer = 0; peer < daemons_.size(); ++peer) {
    const auto group = static_cast<size_t>(world_.peer(static_cast<int32_t>(peer)).group);
    if (churn.group.empty() || scenario_.peers[group].name == churn.group) {
      members.push_back(static_cast<int32_t>(peer));
    }
  }
  std::map<std::string, int32_t> peer_of;  // by node of the trace
  auto rng = std::make_shared<Rng>(derive_seed({scenario_.seed, kChurnStream - 1}));
  std::set<std::string> left_out;
  for (const TraceRow& row : rows) {
    const auto found = peer_of.find(row.node);
    if (found == peer_of.end()) {
      if (peer_of.size() == members.size()) {
        left_out.insert(row.node);
        continue;
      }
      const int32_t peer = members[peer_of.size()];
      peer_of[row.node] = peer;
      absent_[static_cast<size_t>(peer)] = row.adds && row.at_s > 0;
    }
    const int32_t peer = peer_of.at(row.node);
    queue_.at(row.at_s, [this, peer, &churn, rng, adds = row.adds] {
      if (adds) {
        arrive(peer);
      } else {
        depart(peer, churn, *rng);
      }
    });
  }
  if (!left_out.empty()) {
    outcome_.notes.push_back(fmt::format("{} nodes of {} have no peer: the scenario has {} for it",
                                         left_out.size(), churn.trace, members.size()));
  }
  const size_t idle = members.size() - peer_of.size();
  for (size_t i = peer_of.size(); i < members.size(); ++i) {
    absent_[static_cast<size_t>(members[i])] = true;
  }
  if (idle > 0) {
    outcome_.notes.push_back(
        fmt::format("{} peers never come: {} names fewer nodes", idle, churn.trace));
  }
}

void Engine::start_partitions() {
  for (const PartitionSpec& cut : scenario_.partitions) {
    queue_.at(cut.at_s, [this, &cut] { cut_off(cut); });
  }
}

void Engine::start_slowdowns() {
  for (const SlowdownSpec& slow : scenario_.slowdowns) {
    for (int64_t i = 0; i < slow.times; ++i) {
      const double at_s = slow.at_s + slow.every_s * static_cast<double>(i);
      queue_.at(at_s, [this, &slow] { slow_down(slow, slow.to_share); });
      if (slow.for_s > 0) queue_.at(at_s + slow.for_s, [this, &slow] { slow_down(slow, 1); });
    }
  }
}

void Engine::slow_down(const SlowdownSpec& slow, double share) {
  if (slow.peers.empty()) {
    world_.set_way_share(slow.from, slow.to, share);
    record("slowdown", "", fmt::format("{} and {}: {} of their rate", slow.from, slow.to, share));
    return;
  }
  for (size_t i = 0; i < daemons_.size(); ++i) {
    const auto peer = static_cast<int32_t>(i);
    const SimPeer& known = world_.peer(peer);
    const auto group = static_cast<size_t>(known.group);
    if (known.name != slow.peers && scenario_.peers[group].name != slow.peers) continue;
    world_.set_speed_share(peer, share);
  }
  record("slowdown", "", fmt::format("{}: {} of the speed", slow.peers, share));
}

// Stages on both sides hear nothing of each other; when their time is up, they fail. Cuts of a site
// that follow each other are one.
void Engine::cut_off(const PartitionSpec& cut) {
  record("partition", "", fmt::format("site {} is cut off for {} s", cut.site, cut.for_s));
  const auto same = [&](const PartitionSpec& other) {
    return &other != &cut && other.site == cut.site && other.at_s <= cut.at_s &&
           other.at_s + other.for_s >= cut.at_s && (other.at_s < cut.at_s || &other < &cut);
  };
  const auto& cuts = scenario_.partitions;
  if (std::any_of(cuts.begin(), cuts.end(), same)) return;  // it began before
  double until_s = cut.at_s + cut.for_s;
  for (bool longer = true; longer;) {
    longer = false;
    for (const PartitionSpec& other : cuts) {
      const double ends_s = other.at_s + other.for_s;
      if (other.site != cut.site || other.at_s > until_s || ends_s <= until_s) continue;
      until_s = ends_s;
      longer = true;
    }
  }
  if (until_s - cut.at_s <= scenario_.link_timeout_s) return;
  queue_.after(scenario_.link_timeout_s, [this, &cut] {
    const auto inside = [&](int32_t peer) {
      const auto site = static_cast<size_t>(world_.peer(peer).site);
      return scenario_.sites[site].name == cut.site;
    };
    for (size_t slot = 0; slot < runs_.size(); ++slot) {
      if (!runs_[slot]) continue;
      const std::vector<int32_t> peers = runs_[slot]->play->plan().peers;
      std::set<int32_t> torn;
      for (size_t stage = 0; stage < peers.size(); ++stage) {
        for (const int32_t other : runs_[slot]->play->neighbours(static_cast<int32_t>(stage))) {
          if (inside(peers[stage]) != inside(peers[static_cast<size_t>(other)])) {
            torn.insert(static_cast<int32_t>(stage));
          }
        }
      }
      for (const int32_t stage : torn) {
        if (!runs_[slot]) break;
        const int32_t peer = peers[static_cast<size_t>(stage)];
        if (held(peer, runs_[slot]->job, runs_[slot]->epoch) == nullptr) continue;
        end_work(peer, broker::StagePhase::kFailed,
                 {"timeout", "a neighbour stage is silent", "", stage, world_.peer(peer).id});
      }
    }
  });
}

}  // namespace weft::simulate
