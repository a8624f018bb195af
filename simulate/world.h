// World: the peers and the network of a scenario as they really are, beside what the planner knows
// of them. A message of b bytes passes the way between its peers and every line they share with
// others, first come first served, as in the planner's model (broker/planner/pipeline.h); but here
// all jobs, downloads and checkpoints share the lines. Single thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "broker/planner/links_file.h"
#include "simulate/scenario.h"

namespace weft::simulate {

struct SimPeer {
  std::string id, name;
  int32_t site = 0, group = 0;
  broker::PlannerPeer device;  // what it really does
};

// What one kind of message takes from its sender to its receiver.
struct SimRoute {
  int32_t from_site = 0, to_site = 0;
  double latency_s = 0, loss = 0;
  struct Hop {
    int32_t line = 0;
    double seconds_per_byte = 0;
    bool between = false;  // the way between the two, not a line of one of them
  };
  std::vector<Hop> hops;
};

class World {
 public:
  // The scenario must have been checked (parse_scenario).
  explicit World(const Scenario& scenario);

  const std::vector<SimPeer>& peers() const { return peers_; }
  const SimPeer& peer(int32_t index) const { return peers_[static_cast<size_t>(index)]; }
  int32_t index_of(const std::string& peer) const { return index_.at(peer); }
  size_t sites() const { return site_names_.size(); }
  int32_t broker_site() const { return broker_site_; }

  // What the operator's files would say, with the scenario's measure_error.
  const broker::PlannerWorld& known() const { return known_; }

  // A way of its own for each ordered pair of peers that asks.
  SimRoute route(int32_t from, int32_t to);
  SimRoute from_broker(int32_t to);
  SimRoute to_broker(int32_t from);

  // Puts a message on its way at `now`: when it has passed the slowest line, and when it arrives.
  // Bytes of lost packets are sent again and cost a round trip.
  struct Sent {
    double passed_s = 0, arrives_s = 0;
  };
  Sent send(const SimRoute& route, double bytes, double now);

  // One way, without bytes: control messages.
  double latency_to_broker(int32_t peer) const;

  // Until when messages between two sites wait at `now`; now itself where nothing is cut.
  double reachable_at(int32_t from_site, int32_t to_site, double now) const;
  bool cut_from_broker(int32_t peer, double now) const {
    const int32_t site = peers_[static_cast<size_t>(peer)].site;
    return !cuts_.empty() && reachable_at(site, broker_site_, now) > now;
  }

  // The share of its speed with which a peer computes now.
  double speed_share(int32_t peer) const { return speed_share_[static_cast<size_t>(peer)]; }
  void set_speed_share(int32_t peer, double share) {
    speed_share_[static_cast<size_t>(peer)] = share;
  }
  // The ways between the peers of two sites carry a share of what they did from now on, and the
  // planner is told, as brokers measure links. What speeds changed it must find out.
  void set_way_share(const std::string& from_site, const std::string& to_site, double share);

  double bytes_sent() const { return bytes_; }
  double bytes_between_sites() const { return far_bytes_; }

 private:
  struct Way {
    double latency_s = 0, seconds_per_byte = 0, loss = 0;
  };
  const Way& way(int32_t from_site, int32_t to_site) const {
    return ways_[static_cast<size_t>(from_site) * sites() + static_cast<size_t>(to_site)];
  }
  int32_t add_line(double seconds_per_byte);
  void own_way(SimRoute& route, const Way& between, int32_t from, int32_t to);
  void leave(SimRoute& route, int32_t line) const;
  void add_sites(const Scenario& scenario);
  void add_peers(const Scenario& scenario);
  void add_known(const Scenario& scenario);
  double error(double sigma, uint64_t what, uint64_t which) const;

  uint64_t seed_ = 0;
  std::vector<std::string> site_names_;
  std::vector<Way> ways_;                         // [from * sites + to]
  std::vector<double> way_share_, known_mbit_s_;  // the same order
  std::vector<double> speed_share_;               // by peer
  std::vector<SimPeer> peers_;
  std::map<std::string, int32_t> index_;
  // Lines: -1 where there is no limit.
  std::vector<double> line_seconds_per_byte_, free_at_;
  std::vector<int32_t> site_up_, site_down_, peer_up_, peer_down_;
  int32_t broker_site_ = 0, broker_up_ = -1, broker_down_ = -1;
  std::map<std::pair<int32_t, int32_t>, int32_t> pair_lines_;
  struct Cut {
    int32_t site = 0;
    double from_s = 0, to_s = 0;
  };
  std::vector<Cut> cuts_;
  broker::PlannerWorld known_;
  Rng losses_{0};
  double bytes_ = 0, far_bytes_ = 0;
};

// exp(sigma x) with x drawn from the standard normal distribution.
double log_normal(Rng& rng, double sigma);
// Exponentially distributed with that mean.
double exponential(Rng& rng, double mean);

}  // namespace weft::simulate
