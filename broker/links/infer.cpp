#include "broker/links/infer.h"

#include <algorithm>
#include <set>

#include "base/statistics.h"
#include "broker/links/landmark_table.h"

namespace weft::broker {
namespace {

double mbit_s(double bytes_s) {
  return bytes_s * 8e-6;
}

// The least of those that are known; 0: none is.
double least_known(std::initializer_list<double> rates) {
  double least = 0;
  for (const double rate : rates) {
    if (rate > 0 && (least == 0 || rate < least)) least = rate;
  }
  return least;
}

// Of peers with such an address the round trip need not tell that they share a machine, and on a
// busy one it does not.
bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address == "localhost";
}

class Inference {
 public:
  Inference(const Structure& structure, const LandmarkTable& table, const LinkOptions& options)
      : s_(structure), table_(table), options_(options) {}

  // False: nothing is known.
  bool estimate(size_t a, size_t b, LinkEstimate& link) const {
    const Structure::Way* way = s_.way(a, b);
    link.measured = way != nullptr && way->bytes_s > 0;
    if (!(way != nullptr ? latency_of(way->latency_s, link) : infer_latency(a, b, link))) {
      return false;
    }
    const double bytes_s = link.measured ? way->bytes_s : infer_rate(a, b);
    if (link.measured) {
      link.time_ms = way->time_ms;
      link.carried = way->carried;
    }
    link.bandwidth_mbit_s = mbit_s(bytes_s);
    link.path = path_of(a, b, way != nullptr);
    return true;
  }

 private:
  static bool latency_of(double seconds, LinkEstimate& link) {
    link.latency_ms = link.latency_low_ms = link.latency_high_ms = 1e3 * seconds;
    return true;
  }

  bool infer_latency(size_t a, size_t b, LinkEstimate& link) const {
    if (const auto back = s_.latency_s(a, b)) return latency_of(*back, link);
    const size_t from = s_.site_of(a), to = s_.site_of(b);
    if (from == to) return latency_of(median_inside(from), link);
    // Members of a site are as far from anybody as their neighbours, but for the local network.
    const double slack = options_.lan_latency_s;
    const Structure::Way* near = s_.between(from, to);
    if (near == nullptr) near = s_.between(to, from);
    double low = 0, high = 0;
    if (near != nullptr) {
      low = near->latency_s, high = near->latency_s;
      link.latency_ms = 1e3 * near->latency_s;
    } else {
      const LandmarkTable::Bounds bounds = table_.bounds(from, to);
      if (bounds.landmarks == 0) return false;
      low = bounds.low_s, high = bounds.high_s;
      link.latency_ms = 1e3 * (low + high) / 2;
    }
    const bool inside = s_.members(from).size() > 1 || s_.members(to).size() > 1;
    link.latency_low_ms = 1e3 * std::max(0.0, low - (inside ? 2 * slack : 0));
    link.latency_high_ms = 1e3 * (high + (inside ? 2 * slack : 0));
    return true;
  }

  double median_inside(size_t site) const {
    std::vector<double> seconds;
    for (const size_t member : s_.members(site)) {
      for (const auto& [other, way] : s_.ways_from(member)) {
        if (s_.site_of(other) == site) seconds.push_back(way.latency_s);
      }
    }
    if (seconds.empty()) return options_.lan_latency_s;
    return median(std::move(seconds));
  }

  double infer_rate(size_t a, size_t b) const {
    const size_t from = s_.site_of(a), to = s_.site_of(b);
    if (from == to) return least_known({s_.local(a), s_.local(b)});
    const Structure::Way* pair = s_.between(from, to);
    // A rate of one side alone would promise what the other may not have.
    if (pair == nullptr && (s_.up(a) == 0 || s_.down(b) == 0)) return 0;
    return least_known({pair == nullptr ? 0 : pair->bytes_s, s_.up(a), s_.down(b)});
  }

  PathClass path_of(size_t a, size_t b, bool measured) const {
    const bool same_address =
        !s_.peer(a).address.empty() && s_.peer(a).address == s_.peer(b).address;
    const double latency = s_.latency_s(a, b).value_or(1);
    if (same_address && (is_loopback(s_.peer(a).address) || latency <= options_.host_latency_s)) {
      return PathClass::kSameHost;
    }
    if (s_.site_of(a) != s_.site_of(b)) return PathClass::kWan;
    return measured && latency > 2 * options_.lan_latency_s ? PathClass::kWan : PathClass::kLan;
  }

  const Structure& s_;
  const LandmarkTable& table_;
  const LinkOptions& options_;
};

}  // namespace

std::vector<PlannerLink> LinkView::planner_links() const {
  std::vector<PlannerLink> result;
  for (const LinkEstimate& link : links) {
    if (link.bandwidth_mbit_s <= 0) continue;  // the planner would take it for no limit
    result.push_back({link.from, link.to, link.latency_ms, link.bandwidth_mbit_s});
  }
  return result;
}

namespace {

// What a view is asked about: the peers, and the landmarks as seen from their sites.
class Asked {
 public:
  Asked(const Structure& structure, const std::vector<std::string>& ids,
        const std::vector<std::string>& landmarks, const LinkOptions& options)
      : s_(structure),
        peers_(found(ids)),
        table_(structure, found(landmarks), sites()),
        inference_(structure, table_, options) {}

  const std::vector<size_t>& peers() const { return peers_; }

  void add_link(LinkView& view, size_t from, size_t to) const {
    LinkEstimate link;
    link.from = s_.peer(from).id;
    link.to = s_.peer(to).id;
    if (inference_.estimate(from, to, link)) view.links.push_back(std::move(link));
  }

  void add_lines(LinkView& view) const {
    std::map<size_t, std::vector<std::string>> members;
    for (const size_t peer : peers_) members[s_.site_of(peer)].push_back(s_.peer(peer).id);
    for (auto& [site, ids] : members) {
      // Of a single flow it does not matter.
      const size_t outside = peers_.size() - ids.size();
      const bool several = outside > 0 && ids.size() * outside > 1;
      PlannerAccess line;
      const auto rate = [&](bool down, bool& assumed) {
        if (const auto shared = s_.shared_line(site, down)) return mbit_s(*shared);
        const auto guess = several ? s_.assumed_line(site, down) : std::nullopt;
        assumed = guess.has_value();
        return mbit_s(guess.value_or(0));
      };
      line.up_mbit_s = rate(false, line.up_assumed);
      line.down_mbit_s = rate(true, line.down_assumed);
      if (line.up_mbit_s == 0 && line.down_mbit_s == 0) continue;
      // Named after its first peer: sites have no names of their own.
      line.name = s_.peer(s_.members(site).front()).id;
      line.peers = std::move(ids);
      view.access.push_back(std::move(line));
    }
  }

 private:
  std::vector<size_t> found(const std::vector<std::string>& ids) const {
    std::vector<size_t> result;
    for (const std::string& id : ids) {
      if (const auto at = s_.find(id)) result.push_back(*at);
    }
    return result;
  }
  std::vector<size_t> sites() const {
    std::set<size_t> result;
    for (const size_t peer : peers_) result.insert(s_.site_of(peer));
    return {result.begin(), result.end()};
  }

  const Structure& s_;
  std::vector<size_t> peers_;
  LandmarkTable table_;
  Inference inference_;
};

}  // namespace

LinkView infer_links(const Structure& structure, const std::vector<std::string>& ids,
                     const std::vector<std::string>& landmarks, const LinkOptions& options) {
  const Asked asked(structure, ids, landmarks, options);
  LinkView view;
  for (const size_t a : asked.peers()) {
    for (const size_t b : asked.peers()) {
      if (a != b) asked.add_link(view, a, b);
    }
  }
  asked.add_lines(view);
  return view;
}

LinkView measured_links(const Structure& structure, const std::vector<std::string>& ids,
                        const std::vector<std::string>& landmarks, const LinkOptions& options) {
  const Asked asked(structure, ids, landmarks, options);
  const std::set<size_t> wanted(asked.peers().begin(), asked.peers().end());
  LinkView view;
  for (const size_t a : asked.peers()) {
    for (const auto& [b, way] : structure.ways_from(a)) {
      if (wanted.contains(b) && way.bytes_s > 0) asked.add_link(view, a, b);
    }
  }
  asked.add_lines(view);
  return view;
}

std::optional<LineView> line_of(const Structure& structure, size_t peer) {
  const size_t site = structure.site_of(peer);
  LineView line{mbit_s(structure.up(peer)),
                mbit_s(structure.down(peer)),
                mbit_s(structure.shared_line(site, false).value_or(0)),
                mbit_s(structure.shared_line(site, true).value_or(0)),
                {}};
  for (const size_t member : structure.members(site)) {
    if (member != peer) line.site.push_back(structure.peer(member).id);
  }
  if (line.up_mbit_s == 0 && line.down_mbit_s == 0 && line.site.empty()) return std::nullopt;
  return line;
}

}  // namespace weft::broker
