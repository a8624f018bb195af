#include "broker/links/structure.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace weft::broker {

Structure::Structure(const std::map<std::string, LinkPeer>& peers,
                     const std::map<LinkKey, LinkEntry>& records,
                     const std::map<LineKey, LineTest>& lines, const LinkOptions& options) {
  for (const auto& [id, peer] : peers) {
    index_.emplace(id, peers_.size());
    peers_.push_back(&peer);
  }
  out_.resize(size());
  for (const auto& [key, entry] : records) {
    const auto from = find(key.first), to = find(key.second);
    if (!from || !to || !entry.fit) continue;
    const double slope = entry.fit->seconds_per_byte;
    out_[*from][*to] = {entry.fit->latency_s, slope > 0 ? 1 / slope : 0, entry.fit->time_ms,
                        entry.fit->carried};
  }
  // A round trip is the same from both ends: the quieter measurement counts.
  for (size_t a = 0; a < size(); ++a) {
    for (auto& [b, way] : out_[a]) {
      const auto back = out_[b].find(a);
      if (back == out_[b].end()) continue;
      way.latency_s = back->second.latency_s = std::min(way.latency_s, back->second.latency_s);
    }
  }
  join_sites(options);
  rate();
  judge(lines);
}

std::optional<size_t> Structure::find(const std::string& id) const {
  const auto found = index_.find(id);
  return found == index_.end() ? std::nullopt : std::optional<size_t>(found->second);
}

const Structure::Way* Structure::way(size_t a, size_t b) const {
  const auto found = out_[a].find(b);
  return found == out_[a].end() ? nullptr : &found->second;
}

std::optional<double> Structure::latency_s(size_t a, size_t b) const {
  const Way* there = way(a, b);
  if (there == nullptr) there = way(b, a);
  return there == nullptr ? std::nullopt : std::optional<double>(there->latency_s);
}

void Structure::join_sites(const LinkOptions& options) {
  std::vector<size_t> parent(size());
  std::iota(parent.begin(), parent.end(), size_t{0});
  const auto root = [&](size_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  };
  const auto join = [&](size_t a, size_t b) {
    a = root(a), b = root(b);
    parent[std::max(a, b)] = std::min(a, b);
  };
  for (size_t a = 0; a < size(); ++a) {
    for (const auto& [b, way] : out_[a]) {
      if (way.latency_s <= options.lan_latency_s) join(a, b);
    }
  }
  std::map<std::string, size_t> first;  // of each address
  for (size_t i = 0; i < size(); ++i) {
    if (peer(i).address.empty()) continue;
    const auto [known, fresh] = first.emplace(peer(i).address, i);
    // Behind one address of a provider there may be a town: what was measured counts.
    if (!fresh && latency_s(known->second, i).value_or(0) <= options.lan_latency_s) {
      join(known->second, i);
    }
  }
  site_of_.resize(size());
  std::map<size_t, size_t> number;
  for (size_t i = 0; i < size(); ++i) {
    const auto [found, fresh] = number.emplace(root(i), members_.size());
    if (fresh) members_.emplace_back();
    site_of_[i] = found->second;
    members_[found->second].push_back(i);
  }
}

void Structure::rate() {
  up_.assign(size(), 0);
  down_.assign(size(), 0);
  local_.assign(size(), 0);
  for (size_t a = 0; a < size(); ++a) {
    for (const auto& [b, way] : out_[a]) {
      if (site_of_[a] == site_of_[b]) {
        local_[a] = std::max(local_[a], way.bytes_s);
        local_[b] = std::max(local_[b], way.bytes_s);
        continue;
      }
      up_[a] = std::max(up_[a], way.bytes_s);
      down_[b] = std::max(down_[b], way.bytes_s);
      const auto [known, fresh] = between_.emplace(std::pair(site_of_[a], site_of_[b]), way);
      if (fresh) continue;
      known->second.latency_s = std::min(known->second.latency_s, way.latency_s);
      known->second.bytes_s = std::max(known->second.bytes_s, way.bytes_s);
      known->second.time_ms = std::max(known->second.time_ms, way.time_ms);
    }
  }
  // What a peer was not measured for it can as well as the others of its site.
  for (const auto& site : members_) {
    for (std::vector<double>* rates : {&up_, &down_}) {
      double best = 0;
      for (const size_t i : site) best = std::max(best, (*rates)[i]);
      for (const size_t i : site) {
        if ((*rates)[i] == 0) (*rates)[i] = best;
      }
    }
  }
}

void Structure::judge(const std::map<LineKey, LineTest>& lines) {
  std::set<std::pair<size_t, bool>> free;
  std::map<std::pair<size_t, bool>, double> open;  // tests that told neither
  for (const auto& [key, test] : lines) {
    const auto peer = find(key.peer);
    if (!peer) continue;
    const std::pair site(site_of_[*peer], key.down);
    if (test.free()) {
      free.insert(site);
      continue;
    }
    double& line = (test.shared() ? shared_lines_ : open)[site];
    line = std::max({line, test.together_bytes_s, (key.down ? down_ : up_)[*peer]});
  }
  for (size_t at = 0; at < members_.size(); ++at) {
    for (const bool down : {false, true}) {
      const std::pair site(at, down);
      if (shared_lines_.contains(site) || free.contains(site)) continue;
      double line = open.contains(site) ? open[site] : 0;
      for (const size_t i : members_[at]) line = std::max(line, (down ? down_ : up_)[i]);
      if (line > 0) assumed_lines_[site] = line;
    }
  }
}

const Structure::Way* Structure::between(size_t from_site, size_t to_site) const {
  const auto found = between_.find({from_site, to_site});
  return found == between_.end() ? nullptr : &found->second;
}

std::optional<double> Structure::shared_line(size_t site, bool down) const {
  const auto found = shared_lines_.find({site, down});
  return found == shared_lines_.end() ? std::nullopt : std::optional<double>(found->second);
}

std::optional<double> Structure::assumed_line(size_t site, bool down) const {
  const auto found = assumed_lines_.find({site, down});
  return found == assumed_lines_.end() ? std::nullopt : std::optional<double>(found->second);
}

std::optional<double> Structure::site_latency_s(size_t site, size_t landmark) const {
  std::optional<double> best;
  if (site_of_[landmark] == site) best = 0;
  for (const size_t member : members_[site]) {
    const auto latency = latency_s(member, landmark);
    if (latency && (!best || *latency < *best)) best = latency;
  }
  return best;
}

}  // namespace weft::broker
