#include "broker/links/infer.h"

#include <algorithm>

#include "base/statistics.h"

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

class Inference {
 public:
  Inference(const Structure& structure, std::vector<size_t> landmarks, const LinkOptions& options)
      : s_(structure), landmarks_(std::move(landmarks)), options_(options) {}

  // False: nothing is known.
  bool estimate(size_t a, size_t b, LinkEstimate& link) const {
    const Structure::Way* way = s_.way(a, b);
    link.measured = way != nullptr && way->bytes_s > 0;
    if (!(way != nullptr ? latency_of(way->latency_s, link) : infer_latency(a, b, link))) {
      return false;
    }
    const double bytes_s = link.measured ? way->bytes_s : infer_rate(a, b);
    if (link.measured) link.time_ms = way->time_ms;
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
      const Structure::Bounds bounds = s_.bounds(from, to, landmarks_);
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
    if (same_address && latency <= options_.host_latency_s) return PathClass::kSameHost;
    if (s_.site_of(a) != s_.site_of(b)) return PathClass::kWan;
    return measured && latency > 2 * options_.lan_latency_s ? PathClass::kWan : PathClass::kLan;
  }

  const Structure& s_;
  std::vector<size_t> landmarks_;
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

LinkView infer_links(const Structure& structure, const std::vector<std::string>& ids,
                     const std::vector<std::string>& landmarks, const LinkOptions& options) {
  std::vector<size_t> peers, marks;
  for (const std::string& id : ids) {
    if (const auto found = structure.find(id)) peers.push_back(*found);
  }
  for (const std::string& id : landmarks) {
    if (const auto found = structure.find(id)) marks.push_back(*found);
  }
  const Inference inference(structure, std::move(marks), options);
  LinkView view;
  std::map<size_t, std::vector<std::string>> sites;
  for (const size_t a : peers) {
    sites[structure.site_of(a)].push_back(structure.peer(a).id);
    for (const size_t b : peers) {
      LinkEstimate link;
      link.from = structure.peer(a).id;
      link.to = structure.peer(b).id;
      if (a != b && inference.estimate(a, b, link)) view.links.push_back(std::move(link));
    }
  }
  for (auto& [site, members] : sites) {
    const double up = structure.shared_line(site, false).value_or(0);
    const double down = structure.shared_line(site, true).value_or(0);
    if (up == 0 && down == 0) continue;
    // Named after its first peer: sites have no names of their own.
    view.access.push_back({structure.peer(structure.members(site).front()).id, std::move(members),
                           mbit_s(up), mbit_s(down)});
  }
  return view;
}

}  // namespace weft::broker
