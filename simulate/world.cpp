#include "simulate/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft::simulate {
namespace {

constexpr int32_t kBroker = -1;
constexpr double kPacketBytes = 1448;  // TCP payload of an Ethernet frame
// Streams of randomness, so that one more draw in one does not change another.
enum Stream : uint64_t { kSpeeds = 1, kLosses, kKnownSpeeds, kKnownRates };

double normal(Rng& rng) {
  const double u = 1 - rng.uniform(), v = rng.uniform();  // Box and Muller 1958
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

std::string site_group(const std::string& site) {
  return "site " + site;
}

}  // namespace

double log_normal(Rng& rng, double sigma) {
  return sigma == 0 ? 1.0 : std::exp(sigma * normal(rng));
}

double exponential(Rng& rng, double mean) {
  return -mean * std::log(1 - rng.uniform());
}

World::World(const Scenario& scenario)
    : seed_(scenario.seed), losses_(derive_seed({scenario.seed, kLosses})) {
  add_sites(scenario);
  add_peers(scenario);
  add_known(scenario);
}

int32_t World::add_line(double seconds_per_byte) {
  if (seconds_per_byte == 0) return -1;
  line_seconds_per_byte_.push_back(seconds_per_byte);
  free_at_.push_back(0);
  return static_cast<int32_t>(free_at_.size()) - 1;
}

void World::add_sites(const Scenario& scenario) {
  std::map<std::string, int32_t> index;
  for (const SiteSpec& site : scenario.sites) {
    index[site.name] = static_cast<int32_t>(site_names_.size());
    site_names_.push_back(site.name);
    site_up_.push_back(add_line(broker::seconds_per_byte_at(site.up_mbit_s)));
    site_down_.push_back(add_line(broker::seconds_per_byte_at(site.down_mbit_s)));
  }
  const SiteLink other = scenario.other_links.value_or(SiteLink{});
  ways_.assign(
      sites() * sites(),
      {other.latency_ms / 1e3, broker::seconds_per_byte_at(other.bandwidth_mbit_s), other.loss});
  const auto at = [&](int32_t from, int32_t to) -> Way& {
    return ways_[static_cast<size_t>(from) * sites() + static_cast<size_t>(to)];
  };
  for (size_t i = 0; i < sites(); ++i) {
    const SiteSpec& site = scenario.sites[i];
    at(static_cast<int32_t>(i), static_cast<int32_t>(i)) = {
        site.latency_ms / 1e3, broker::seconds_per_byte_at(site.bandwidth_mbit_s), 0};
  }
  for (const SiteLink& link : scenario.links) {
    const Way way{link.latency_ms / 1e3, broker::seconds_per_byte_at(link.bandwidth_mbit_s),
                  link.loss};
    const int32_t a = index.at(link.from), b = index.at(link.to);
    at(a, b) = at(b, a) = way;
  }
  for (const broker::PlannerLink& link : scenario.measured_links) {
    Way& way = at(index.at(link.from), index.at(link.to));
    way.latency_s = link.latency_ms / 1e3;
    way.seconds_per_byte = broker::seconds_per_byte_at(link.bandwidth_mbit_s);
  }
  way_share_.assign(ways_.size(), 1.0);
  broker_site_ = index.at(scenario.broker.site);
  broker_up_ = add_line(broker::seconds_per_byte_at(scenario.broker.up_mbit_s));
  broker_down_ = add_line(broker::seconds_per_byte_at(scenario.broker.down_mbit_s));
  for (const PartitionSpec& cut : scenario.partitions) {
    cuts_.push_back({index.at(cut.site), cut.at_s, cut.at_s + cut.for_s});
  }
}

void World::add_peers(const Scenario& scenario) {
  Rng speeds(derive_seed({scenario.seed, kSpeeds}));
  std::map<std::string, int32_t> sites;
  for (size_t i = 0; i < site_names_.size(); ++i) sites[site_names_[i]] = static_cast<int32_t>(i);
  for (size_t g = 0; g < scenario.peers.size(); ++g) {
    const PeerGroup& group = scenario.peers[g];
    for (int32_t i = 0; i < group.count; ++i) {
      SimPeer peer;
      const auto number = static_cast<int32_t>(peers_.size());
      peer.id = fmt::format("p{:06}", number);
      peer.name = peer_name(group, i);
      peer.site = sites.at(group.site);
      peer.group = static_cast<int32_t>(g);
      peer.device = group.device;
      peer.device.id = peer.id;
      const double factor = log_normal(speeds, group.speed_spread);
      peer.device.gflops *= factor;
      peer.device.memory_gbyte_s *= factor;
      peer_up_.push_back(add_line(broker::seconds_per_byte_at(group.up_mbit_s)));
      peer_down_.push_back(add_line(broker::seconds_per_byte_at(group.down_mbit_s)));
      speed_share_.push_back(1.0);
      index_[peer.id] = number;
      peers_.push_back(std::move(peer));
    }
  }
}

double World::error(double sigma, uint64_t what, uint64_t which) const {
  Rng rng(derive_seed({seed_, what, which}));
  return log_normal(rng, sigma);
}

// Of each peer its name, as planner_inputs joins them; links are told by site.
void World::add_known(const Scenario& scenario) {
  const double sigma = scenario.measure_error;
  std::vector<std::vector<std::string>> members(sites());
  for (size_t i = 0; i < peers_.size(); ++i) {
    const SimPeer& peer = peers_[i];
    broker::PlannerPeer known = peer.device;
    known.id = peer.name;
    const double factor = error(sigma, kKnownSpeeds, i);
    known.gflops *= factor;
    known.memory_gbyte_s *= factor;
    known_.peers.push_back(std::move(known));
    known_.site_of.push_back(site_names_[static_cast<size_t>(peer.site)]);
    members[static_cast<size_t>(peer.site)].push_back(peer.name);
    const PeerGroup& group = scenario.peers[static_cast<size_t>(peer.group)];
    if (group.up_mbit_s > 0 || group.down_mbit_s > 0) {
      known_.access.push_back({peer.name, {peer.name}, group.up_mbit_s, group.down_mbit_s});
    }
  }
  for (size_t i = 0; i < sites(); ++i) {
    const SiteSpec& site = scenario.sites[i];
    known_.access.push_back({site_group(site.name), members[i], site.up_mbit_s, site.down_mbit_s});
  }
  for (size_t a = 0; a < sites(); ++a) {
    for (size_t b = 0; b < sites(); ++b) {
      const Way& way = ways_[a * sites() + b];
      const double mbit_s = way.seconds_per_byte > 0 ? 8e-6 / way.seconds_per_byte : 0;
      known_.links.push_back({site_group(site_names_[a]), site_group(site_names_[b]),
                              1e3 * way.latency_s,
                              mbit_s * error(sigma, kKnownRates, a * sites() + b)});
      known_mbit_s_.push_back(known_.links.back().bandwidth_mbit_s);
    }
  }
}

void World::leave(SimRoute& route, int32_t line) const {
  if (line < 0) return;
  route.hops.push_back({line, line_seconds_per_byte_[static_cast<size_t>(line)]});
}

SimRoute World::route(int32_t from, int32_t to) {
  const SimPeer &a = peer(from), &b = peer(to);
  const Way& between = way(a.site, b.site);
  SimRoute route{a.site, b.site, between.latency_s, between.loss, {}};
  own_way(route, between, from, to);
  leave(route, peer_up_[static_cast<size_t>(from)]);
  leave(route, peer_down_[static_cast<size_t>(to)]);
  if (a.site != b.site) {
    leave(route, site_up_[static_cast<size_t>(a.site)]);
    leave(route, site_down_[static_cast<size_t>(b.site)]);
  }
  return route;
}

// The broker counts as one more peer: its flow to a peer has a way of its own, too.
void World::own_way(SimRoute& route, const Way& between, int32_t from, int32_t to) {
  if (between.seconds_per_byte == 0) return;
  const auto [found, added] = pair_lines_.try_emplace({from, to}, 0);
  if (added) found->second = add_line(between.seconds_per_byte);
  leave(route, found->second);
  route.hops.back().between = true;
}

SimRoute World::from_broker(int32_t to) {
  const SimPeer& b = peer(to);
  const Way& between = way(broker_site_, b.site);
  SimRoute route{broker_site_, b.site, between.latency_s, between.loss, {}};
  own_way(route, between, kBroker, to);
  leave(route, broker_up_);
  leave(route, peer_down_[static_cast<size_t>(to)]);
  if (b.site != broker_site_) leave(route, site_down_[static_cast<size_t>(b.site)]);
  return route;
}

SimRoute World::to_broker(int32_t from) {
  const SimPeer& a = peer(from);
  const Way& between = way(a.site, broker_site_);
  SimRoute route{a.site, broker_site_, between.latency_s, between.loss, {}};
  own_way(route, between, from, kBroker);
  leave(route, broker_down_);
  leave(route, peer_up_[static_cast<size_t>(from)]);
  if (a.site != broker_site_) leave(route, site_up_[static_cast<size_t>(a.site)]);
  return route;
}

World::Sent World::send(const SimRoute& route, double bytes, double now) {
  bytes_ += bytes;
  if (route.from_site != route.to_site) far_bytes_ += bytes;
  double latency_s = route.latency_s;
  if (route.loss > 0) {
    // Lost packets of the message: the mean, and by chance one more.
    const double mean = std::ceil(bytes / kPacketBytes) * route.loss / (1 - route.loss);
    const double lost = std::floor(mean + losses_.uniform());
    bytes += lost * kPacketBytes;
    if (lost > 0) latency_s += 2 * route.latency_s;
  }
  const double way_slower = 1 / way_share_[static_cast<size_t>(route.from_site) * sites() +
                                           static_cast<size_t>(route.to_site)];
  const auto seconds = [&](const SimRoute::Hop& hop) {
    return bytes * hop.seconds_per_byte * (hop.between ? way_slower : 1);
  };
  const double start = cuts_.empty() ? now : reachable_at(route.from_site, route.to_site, now);
  // A message that waits for a cut to end takes no line from others until then.
  if (start > now) {
    double slowest = 0;
    for (const SimRoute::Hop& hop : route.hops) slowest = std::max(slowest, seconds(hop));
    return {start + slowest, start + slowest + latency_s};
  }
  double passed = start;
  for (const SimRoute::Hop& hop : route.hops) {
    double& free_at = free_at_[static_cast<size_t>(hop.line)];
    free_at = std::max(free_at, start) + seconds(hop);
    passed = std::max(passed, free_at);
  }
  return {passed, passed + latency_s};
}

void World::set_way_share(const std::string& from_site, const std::string& to_site, double share) {
  const auto index = [&](const std::string& name) {
    return static_cast<size_t>(std::find(site_names_.begin(), site_names_.end(), name) -
                               site_names_.begin());
  };
  const size_t a = index(from_site), b = index(to_site);
  for (const size_t at : {a * sites() + b, b * sites() + a}) {
    way_share_[at] = share;
    known_.links[at].bandwidth_mbit_s = known_mbit_s_[at] * share;
  }
}

double World::latency_to_broker(int32_t index) const {
  return way(peer(index).site, broker_site_).latency_s;
}

double World::reachable_at(int32_t from_site, int32_t to_site, double now) const {
  if (from_site == to_site) return now;
  // A site may be cut off again as soon as it is back.
  for (bool moved = true; moved;) {
    moved = false;
    for (const Cut& cut : cuts_) {
      if ((cut.site != from_site && cut.site != to_site) || now < cut.from_s || now >= cut.to_s) {
        continue;
      }
      now = cut.to_s;
      moved = true;
    }
  }
  return now;
}

}  // namespace weft::simulate
