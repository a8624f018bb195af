#include "broker/planner/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/statistics.h"

namespace weft::broker {
namespace {

bool usable(double number) {
  return std::isfinite(number) && number >= 0;
}

}  // namespace

double seconds_per_byte_at(double mbit_s) {
  return std::isfinite(mbit_s) && mbit_s > 0 ? 8 / (1e6 * mbit_s) : 0;
}

Network::Network(size_t peers)
    : peers_(peers),
      latency_(peers * peers, 0.0),
      pair_(peers * peers, 0.0),
      rate_(peers * peers, 0.0),
      groups_of_(peers),
      known_(peers, false),
      assumed_(peers * peers, false) {}

Network::Network(const std::vector<std::string>& ids, const std::vector<PlannerLink>& links,
                 const std::vector<PlannerAccess>& access)
    : Network(ids.size()) {
  std::map<std::string, std::vector<int32_t>> members;  // by name of a peer or group
  for (size_t i = 0; i < ids.size(); ++i) members[ids[i]] = {static_cast<int32_t>(i)};
  std::vector<std::vector<int32_t>> groups;
  for (const PlannerAccess& group : access) {
    groups.emplace_back();
    for (const std::string& id : group.peers) {
      if (const auto found = members.find(id);
          found != members.end() && found->second.size() == 1) {
        groups.back().push_back(found->second[0]);
      }
    }
  }
  for (size_t i = 0; i < access.size(); ++i) members.try_emplace(access[i].name, groups[i]);
  std::vector<bool> listed(peers_ * peers_, false);
  size_t odd = 0;
  for (const PlannerLink& link : links) {
    const auto senders = members.find(link.from), receivers = members.find(link.to);
    if (senders == members.end() || receivers == members.end()) continue;
    if (!usable(link.latency_ms) || !usable(link.bandwidth_mbit_s)) {
      ++odd;
      continue;
    }
    if (link.latency_ms == 0 && link.bandwidth_mbit_s == 0) continue;
    for (const int32_t a : senders->second) {
      for (const int32_t b : receivers->second) {
        if (a == b) continue;
        const auto from = static_cast<size_t>(a), to = static_cast<size_t>(b);
        set(from, to, link.latency_ms / 1e3, seconds_per_byte_at(link.bandwidth_mbit_s));
        listed[from * peers_ + to] = true;
      }
    }
  }
  if (odd > 0) {
    notes_.push_back(fmt::format("{} link{} with a negative or missing number left out", odd,
                                 odd == 1 ? "" : "s"));
  }
  fill_holes(listed);
  size_t assumed = 0;
  for (size_t i = 0; i < access.size(); ++i) {
    if (groups[i].empty()) continue;
    assumed += access[i].up_assumed || access[i].down_assumed;
    add_access(access[i].name, groups[i], seconds_per_byte_at(access[i].up_mbit_s),
               seconds_per_byte_at(access[i].down_mbit_s));
  }
  if (assumed > 0) {
    notes_.push_back(
        fmt::format("whether flows share the line of their site is not known of {} site{}: they "
                    "count as if they did",
                    assumed, assumed == 1 ? "" : "s"));
  }
}

Network Network::among(const std::vector<int32_t>& peers) const {
  Network part(peers.size());
  for (size_t a = 0; a < peers.size(); ++a) {
    const auto from = static_cast<size_t>(peers[a]);
    part.groups_of_[a] = groups_of_[from];
    part.known_[a] = known_[from];
    for (size_t b = 0; b < peers.size(); ++b) {
      const size_t here = a * part.peers_ + b,
                   there = from * peers_ + static_cast<size_t>(peers[b]);
      part.latency_[here] = latency_[there];
      part.pair_[here] = pair_[there];
      part.rate_[here] = rate_[there];
      part.assumed_[here] = assumed_[there];
    }
  }
  part.line_seconds_per_byte_ = line_seconds_per_byte_;
  part.line_names_ = line_names_;
  part.measured_ = measured_;
  return part;
}

void Network::fill_holes(std::vector<bool>& listed) {
  double slowest = 0, farthest = 0;
  for (size_t i = 0; i < listed.size(); ++i) {
    if (!listed[i]) continue;
    measured_ = true;
    known_[i / peers_] = known_[i % peers_] = true;
    slowest = std::max(slowest, pair_[i]);
    farthest = std::max(farthest, latency_[i]);
  }
  if (!measured_) return;
  size_t holes = 0;
  for (size_t from = 0; from < peers_; ++from) {
    for (size_t to = 0; to < peers_; ++to) {
      if (from == to || listed[from * peers_ + to]) continue;
      assumed_[from * peers_ + to] = true;
      if (listed[to * peers_ + from]) {
        set(from, to, latency_s(to, from), pair_seconds_per_byte(to, from));
      } else {
        set(from, to, farthest, slowest);
        if (from < to) ++holes;
      }
    }
  }
  if (holes > 0) {
    notes_.push_back(
        fmt::format("{} of {} pairs of peers were never measured and count as the "
                    "slowest that were",
                    holes, peers_ * (peers_ - 1) / 2));
  }
}

void Network::set(size_t from, size_t to, double latency_s, double seconds_per_byte) {
  const size_t at = from * peers_ + to;
  latency_[at] = latency_s;
  pair_[at] = seconds_per_byte;
  measured_ = true;
  std::vector<int32_t> lines;
  lines_of(from, to, lines);
  rate_[at] = seconds_per_byte;
  for (const int32_t line : lines) {
    rate_[at] = std::max(rate_[at], line_seconds_per_byte(static_cast<size_t>(line)));
  }
}

void Network::lines_of(size_t from, size_t to, std::vector<int32_t>& lines) const {
  const auto leaves = [&](size_t inside, size_t outside, int32_t down) {
    for (const int32_t group : groups_of_[inside]) {
      const auto& others = groups_of_[outside];
      if (std::find(others.begin(), others.end(), group) != others.end()) continue;
      const int32_t line = 2 * group + down;
      if (line_seconds_per_byte_[static_cast<size_t>(line)] > 0) lines.push_back(line);
    }
  };
  leaves(from, to, 0);
  leaves(to, from, 1);
}

void Network::add_access(const std::string& name, const std::vector<int32_t>& members,
                         double up_seconds_per_byte, double down_seconds_per_byte) {
  const auto group = static_cast<int32_t>(lines() / 2);
  line_seconds_per_byte_.push_back(up_seconds_per_byte);
  line_seconds_per_byte_.push_back(down_seconds_per_byte);
  line_names_.push_back("the uplink of " + name);
  line_names_.push_back("the downlink of " + name);
  for (const int32_t peer : members) {
    auto& groups = groups_of_[static_cast<size_t>(peer)];
    if (groups.empty() || groups.back() != group) groups.push_back(group);
  }
  std::vector<bool> inside(peers_, false);
  for (const int32_t peer : members) inside[static_cast<size_t>(peer)] = true;
  for (const int32_t peer : members) {
    const auto a = static_cast<size_t>(peer);
    for (size_t b = 0; b < peers_; ++b) {
      if (inside[b]) continue;
      double &out = rate_[a * peers_ + b], &in = rate_[b * peers_ + a];
      out = std::max(out, up_seconds_per_byte);
      in = std::max(in, down_seconds_per_byte);
    }
  }
}

namespace {

template <typename Way>
double middle_way(size_t peers, size_t peer, const Way& way) {
  std::vector<double> ways;
  for (size_t other = 0; other < peers; ++other) {
    const double rate = other == peer ? 0 : way(other);
    if (rate > 0) ways.push_back(rate);
  }
  return ways.empty() ? 0 : median(std::move(ways));
}

}  // namespace

double to_broker_seconds_per_byte(const Network& network, size_t peer) {
  return middle_way(network.peers(), peer,
                    [&](size_t other) { return network.seconds_per_byte(peer, other); });
}

double from_broker_seconds_per_byte(const Network& network, size_t peer) {
  return middle_way(network.peers(), peer,
                    [&](size_t other) { return network.seconds_per_byte(other, peer); });
}

}  // namespace weft::broker
