// The network between the peers of a plan, complete and checked: latency and time per byte of every
// direction, and the shares that flows of one host or site have in common (its uplink, its
// downlink).
//
// A pairwise matrix overstates what a host can do: all its flows leave through one access line. An
// Access is a named group of peers whose traffic with everybody outside passes two such lines;
// flows inside the group do not. Groups may nest (host, site). Plain data after building; any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::broker {

// One direction of the way between two peers; one that is not listed is unknown. An end may be the
// name of an Access, then it holds for each of its peers; of several that say something of a way
// the last counts.
struct PlannerLink {
  std::string from, to;
  double latency_ms = 0;        // one way
  double bandwidth_mbit_s = 0;  // 0: unknown, messages take no time
};

// What the peers of a host or site share towards everybody else; 0: no limit of its own.
struct PlannerAccess {
  std::string name;
  std::vector<std::string> peers;
  double up_mbit_s = 0, down_mbit_s = 0;
  bool up_assumed = false, down_assumed = false;  // whether they do is not known
};

class Network {
 public:
  // All links unlimited and without delay.
  explicit Network(size_t peers);
  // ids: names of the peers, by index. Links and groups that name others are left out. What is
  // unknown is filled in and told in notes(): a direction from its opposite, a pair that nobody
  // measured from the slowest that was; with no measured link at all, links delay nothing.
  Network(const std::vector<std::string>& ids, const std::vector<PlannerLink>& links,
          const std::vector<PlannerAccess>& access);

  // Of some of the peers: peer i of the result is peers[i] here. Lines stay, without the others.
  Network among(const std::vector<int32_t>& peers) const;

  size_t peers() const { return peers_; }
  double latency_s(size_t from, size_t to) const { return latency_[from * peers_ + to]; }
  // Of one flow that has every line for itself.
  double seconds_per_byte(size_t from, size_t to) const { return rate_[from * peers_ + to]; }
  // The same of the way between the two alone, without the lines they share with others.
  double pair_seconds_per_byte(size_t from, size_t to) const { return pair_[from * peers_ + to]; }
  void set(size_t from, size_t to, double latency_s, double seconds_per_byte);

  // Lines that several flows share, each one direction: appends those a flow passes.
  size_t lines() const { return line_seconds_per_byte_.size(); }
  double line_seconds_per_byte(size_t line) const { return line_seconds_per_byte_[line]; }
  const std::string& line_name(size_t line) const { return line_names_[line]; }
  void lines_of(size_t from, size_t to, std::vector<int32_t>& lines) const;
  void add_access(const std::string& name, const std::vector<int32_t>& members,
                  double up_seconds_per_byte, double down_seconds_per_byte);

  bool measured() const { return measured_; }             // any link at all
  bool known(size_t peer) const { return known_[peer]; }  // any link of this peer
  // Taken from the opposite direction, or from other links.
  bool assumed(size_t from, size_t to) const { return assumed_[from * peers_ + to]; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void fill_holes(std::vector<bool>& listed);

  size_t peers_ = 0;
  std::vector<double> latency_, pair_, rate_;  // [from * peers + to]
  std::vector<std::vector<int32_t>> groups_of_;
  std::vector<double> line_seconds_per_byte_;  // [2 group]: up, [2 group + 1]: down
  std::vector<std::string> line_names_;
  std::vector<bool> known_, assumed_;
  bool measured_ = false;
  std::vector<std::string> notes_;
};

// Seconds a byte takes from a peer to the broker, or back. Nobody measures these ways: they count
// as the middle one of the peer's to the others; 0 where none of them takes time.
double to_broker_seconds_per_byte(const Network& network, size_t peer);
double from_broker_seconds_per_byte(const Network& network, size_t peer);

// Seconds a byte takes at a rate; 0 for a rate that is unknown.
double seconds_per_byte_at(double mbit_s);

}  // namespace weft::broker
