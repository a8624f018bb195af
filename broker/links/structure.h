// Structure: what few measurements say about the many that were not made. Peers of one address or
// with the latency of a local network form a site; landmarks place sites by their latencies, since
// the triangle inequality bounds the latency of any two; the best rate a peer ever reached is what
// its line carries at least. Pure; built anew from the book's records.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "broker/links/link_fit.h"
#include "broker/links/link_types.h"

namespace weft::broker {

using LinkKey = std::pair<std::string, std::string>;  // from, to

struct LinkEntry {
  LinkRecord record;
  std::optional<LinkFit> fit;  // of the record
};

// Two flows of a peer at once, against the same alone: half of the sum where they share its line,
// all of it where each has a way of its own.
struct LineTest {
  int64_t time_ms = 0;
  double share = 0;             // together / sum of alone
  double together_bytes_s = 0;  // it carried
  static constexpr double kShared = 0.7, kFree = 0.8;
  bool shared() const { return share > 0 && share < kShared; }
  bool free() const { return share > kFree; }
};
struct LineKey {
  std::string peer;
  bool down = false;
  auto operator<=>(const LineKey&) const = default;
};

class Structure {
 public:
  Structure(const std::map<std::string, LinkPeer>& peers,
            const std::map<LinkKey, LinkEntry>& records, const std::map<LineKey, LineTest>& lines,
            const LinkOptions& options);

  size_t size() const { return peers_.size(); }
  const LinkPeer& peer(size_t i) const { return *peers_[i]; }
  std::optional<size_t> find(const std::string& id) const;

  size_t sites() const { return members_.size(); }
  size_t site_of(size_t i) const { return site_of_[i]; }
  const std::vector<size_t>& members(size_t site) const { return members_[site]; }

  struct Way {
    double latency_s = 0;  // one way, the shorter of both directions
    double bytes_s = 0;    // 0: not measured
    int64_t time_ms = 0;
    bool carried = false;  // the rate is that of real work
  };
  // As measured from a to b; nullptr: it was not.
  const Way* way(size_t a, size_t b) const;
  const std::map<size_t, Way>& ways_from(size_t a) const { return out_[a]; }
  std::optional<double> latency_s(size_t a, size_t b) const;  // measured, either direction

  // Best rates a peer is known to send and receive with, beyond its site; 0: unknown.
  double up(size_t i) const { return up_[i]; }
  double down(size_t i) const { return down_[i]; }
  double local(size_t i) const { return local_[i]; }  // inside its site, either direction
  bool local_measured(size_t i) const { return local_[i] > 0; }
  // Sites that were measured against each other: best rate, latency.
  const Way* between(size_t from_site, size_t to_site) const;
  // What the line of a site carries in one direction, if its flows were seen to share it.
  std::optional<double> shared_line(size_t site, bool down) const;
  // Where no test has said that its flows share a line or that they do not: what one line is known
  // to carry, all the same.
  std::optional<double> assumed_line(size_t site, bool down) const;

  // From the nearest of its members.
  std::optional<double> site_latency_s(size_t site, size_t landmark) const;

 private:
  void join_sites(const LinkOptions& options);
  void rate();
  void judge(const std::map<LineKey, LineTest>& lines);

  std::vector<const LinkPeer*> peers_;
  std::map<std::string, size_t> index_;
  std::vector<std::map<size_t, Way>> out_;
  std::vector<size_t> site_of_;
  std::vector<std::vector<size_t>> members_;
  std::vector<double> up_, down_, local_;
  std::map<std::pair<size_t, size_t>, Way> between_;
  std::map<std::pair<size_t, bool>, double> shared_lines_, assumed_lines_;
};

}  // namespace weft::broker
