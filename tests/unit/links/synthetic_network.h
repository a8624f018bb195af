// A network that is known, for tests of what is inferred of it: hosts on a plane with a height (the
// way to the next exchange), sites of a local network behind a shared line, rates of pairs of
// sites. It answers probes as daemons would, with noise by seed.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "broker/links/link_book.h"

namespace weft::broker {

struct SyntheticSite {
  double x_ms = 0, y_ms = 0, height_ms = 0;
  double up_mbit_s = 0, down_mbit_s = 0;  // shared by all its hosts; 0: no limit
  double lan_mbit_s = 1000, lan_ms = 0.1;
};

class SyntheticNetwork {
 public:
  explicit SyntheticNetwork(uint64_t seed, double noise = 0.03) : rng_(seed), noise_(noise) {}

  void add_site(SyntheticSite site, size_t hosts, bool one_address = false) {
    sites_.push_back(site);
    for (size_t k = 0; k < hosts; ++k) {
      LinkPeer peer;
      // Names in no order of sites: what comes first must not matter.
      peer.id = "p-" + std::to_string(1000 + mix64(peers_.size()) % 9000) + "-" +
                std::to_string(peers_.size());
      peer.address = one_address ? "site-" + std::to_string(sites_.size())
                                 : "host-" + std::to_string(peers_.size());
      peer.idle = peer.dialable = true;
      site_of_[peer.id] = sites_.size() - 1;
      peers_.push_back(std::move(peer));
    }
  }
  // The way between two sites has a rate of its own, for each pair of hosts.
  void set_pair(size_t from, size_t to, double mbit_s) { pair_[{from, to}] = mbit_s; }

  std::vector<LinkPeer>& peers() { return peers_; }
  size_t site_of(const std::string& id) const { return site_of_.at(id); }
  const SyntheticSite& site(size_t i) const { return sites_[i]; }

  double latency_ms(const std::string& a, const std::string& b) const {
    const SyntheticSite &x = sites_[site_of_.at(a)], &y = sites_[site_of_.at(b)];
    if (site_of_.at(a) == site_of_.at(b)) return x.lan_ms;
    return std::hypot(x.x_ms - y.x_ms, x.y_ms - y.y_ms) + x.height_ms + y.height_ms + x.lan_ms +
           y.lan_ms;
  }
  // Of one flow alone; without its sites' lines.
  double pair_mbit_s(const std::string& a, const std::string& b) const {
    const size_t from = site_of_.at(a), to = site_of_.at(b);
    if (from == to) return sites_[from].lan_mbit_s;
    const auto found = pair_.find({from, to});
    return found == pair_.end() ? 1e5 : found->second;
  }
  double mbit_s(const std::string& a, const std::string& b) const {
    const size_t from = site_of_.at(a), to = site_of_.at(b);
    double rate = pair_mbit_s(a, b);
    if (from == to) return rate;
    if (sites_[from].up_mbit_s > 0) rate = std::min(rate, sites_[from].up_mbit_s);
    if (sites_[to].down_mbit_s > 0) rate = std::min(rate, sites_[to].down_mbit_s);
    return rate;
  }

  ProbeResult answer(const ProbeTask& task) {
    ProbeResult result;
    result.task = task.id;
    double alone = 0, line = 0;
    for (const std::string& target : task.targets) {
      const auto& from = task.receive ? target : task.prober;
      const auto& to = task.receive ? task.prober : target;
      ProbedLink link;
      link.target = target;
      // The shortest of several: late by little.
      link.round_trip_s = 2e-3 * latency_ms(from, to) * (1 + 0.1 * noise_ * rng_.uniform()) +
                          0.0002 * rng_.uniform();
      const double bytes_s = mbit_s(from, to) / 8e-6;
      for (double bytes = 65536; task.targets.size() == 1 && bytes <= double(task.max_bytes);
           bytes *= 4) {
        // Now and then a scheduler's pause of some milliseconds lies in between.
        const double pause = rng_.below(8) == 0 ? 0.005 : 0;
        link.trains.push_back({bytes, bytes / bytes_s * off() + pause});
        if (bytes / bytes_s > 0.025) break;
      }
      link.alone_bytes_s = bytes_s * off();
      alone += bytes_s;
      result.links.push_back(std::move(link));
    }
    const size_t own = site_of_.at(task.prober);
    line = (task.receive ? sites_[own].down_mbit_s : sites_[own].up_mbit_s) / 8e-6;
    const double part = line > 0 && line < alone ? line / alone : 1;
    for (ProbedLink& link : result.links) {
      link.together_bytes_s = link.alone_bytes_s * part * off();
      if (task.targets.size() == 1) link.alone_bytes_s = link.together_bytes_s = 0;
    }
    return result;
  }

  // Probes until nothing more is wanted for a while; the number of directions measured.
  size_t measure(LinkBook& book, int64_t& now_ms, int64_t took_ms = 700) {
    size_t probes = 0;
    for (int quiet = 0; quiet < 3;) {
      book.set_peers(peers_);
      const auto tasks = book.next(now_ms);
      quiet = tasks.empty() ? quiet + 1 : 0;
      for (const ProbeTask& task : tasks) {
        ++probes;
        book.add(task.prober, answer(task), now_ms + took_ms);
      }
      now_ms += 1000;
    }
    return probes;
  }

 private:
  double off() { return 1 + noise_ * (2 * rng_.uniform() - 1); }

  Rng rng_;
  double noise_;
  std::vector<SyntheticSite> sites_;
  std::vector<LinkPeer> peers_;
  std::map<std::string, size_t> site_of_;
  std::map<std::pair<size_t, size_t>, double> pair_;
};

}  // namespace weft::broker
