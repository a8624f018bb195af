// LinkBook: what the broker knows of the links between its peers, and what it wants measured next.
//
// It keeps what was measured of each direction (link_fit.h), asks for probes so that n peers cost
// O(n) of them (probe_plan.h), and infers the rest from structure (infer.h). Pure: no clock,
// socket, thread or chance; the same calls give the same answers. Results come from strangers:
// one counts only as the answer of the peer that was asked, within bounds.
//
// Peers that run a stage are never probed. Lines that such peers share (by address or site) are
// free for probes `busy_share` of the time: after one that took t, none for t (1 / share - 1). That
// counts for all lines of a job together, since a job waits for whichever of them is disturbed.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "broker/links/infer.h"
#include "broker/links/link_types.h"
#include "broker/links/structure.h"

namespace weft::broker {

class LinkBook {
 public:
  explicit LinkBook(LinkOptions options = {}) : options_(options), next_id_(options.first_task) {}

  // All peers of the cluster; what is known of others is forgotten.
  void set_peers(const std::vector<LinkPeer>& peers);
  // Directions that a plan uses: they are measured themselves, before others.
  void depend_on(const std::vector<LinkKey>& ways);
  // What to measure now; call it about every second. Tasks count as running until their result
  // comes or options.task_ms have passed.
  std::vector<ProbeTask> next(int64_t now_ms);
  bool due(int64_t now_ms) const { return now_ms >= next_ms_; }  // else next() does nothing
  // The directions of which more is known now, to be stored; none: the result is not believed, or
  // says that there was none.
  std::vector<LinkKey> add(const std::string& prober, const ProbeResult& result, int64_t now_ms);
  // Real work went from one peer to another (link_fit.h). The directions of which more is known
  // now.
  std::vector<LinkKey> add_traffic(const LinkKey& way, const Carried& carried, int64_t now_ms);

  // Nothing is known of any way between these peers, and a first measurement of one is under way,
  // or comes with the next probes. The book need not have heard of them yet.
  bool awaited(const std::vector<LinkPeer>& peers) const;
  LinkView view(const std::vector<std::string>& ids) const;
  // Of these peers' ways those only that were measured themselves.
  LinkView measured(const std::vector<std::string>& ids) const;
  std::optional<LineView> line(const std::string& peer) const;  // nullopt: nothing is known
  const LinkEntry* find(const LinkKey& way) const;
  bool knows(const std::string& peer) const { return peers_.contains(peer); }
  size_t directions() const { return records_.size(); }               // measured themselves
  uint64_t probes() const { return next_id_ - options_.first_task; }  // asked for so far
  const LinkOptions& options() const { return options_; }

  // What must survive a restart: one row a direction (line tests are made anew).
  nlohmann::json row(const LinkKey& way) const;
  void restore(const LinkKey& way, const nlohmann::json& row);

 private:
  friend class ProbePlan;
  struct Running {
    ProbeTask task;
    int64_t since_ms = 0;
    std::set<std::string> jobs;  // whose lines it disturbs
  };
  // Why a direction is not tried now.
  struct Trouble {
    int failures = 0;
    int64_t until_ms = 0;
  };
  std::vector<LinkKey> measured(const ProbeTask& task, const ProbeResult& result, int64_t now_ms);
  bool test_line(const ProbeTask& task, const ProbeResult& result, int64_t now_ms);
  void failed(const ProbeTask& task, const ProbeResult& result, int64_t now_ms);
  // Ways that work was told of lately and that share a line at one end of this one, itself
  // included.
  size_t flows_beside(const LinkKey& way, int64_t now_ms);
  std::vector<std::string> neighbours(const std::string& peer, int64_t now_ms);  // of its site
  void line_carries(const LineKey& line, double most_bytes_s);
  void rest(const Running& run, int64_t took_ms, int64_t now_ms);
  void forget_old(int64_t now_ms);
  const Structure& structure() const;

  LinkOptions options_;
  std::map<std::string, LinkPeer> peers_;
  std::map<LinkKey, LinkEntry> records_;
  std::map<LineKey, LineTest> lines_;
  std::map<LinkKey, Trouble> trouble_;
  std::map<LineKey, Trouble> line_trouble_;
  std::set<LinkKey> depended_;
  std::map<LinkKey, int64_t> worked_ms_;  // when work was told of it; and by to, from
  std::map<LinkKey, int64_t> worked_back_ms_;
  // By peer, as flows_beside() saw it last: every report may change the structure, seldom the
  // sites.
  std::map<std::string, size_t> site_of_;
  std::vector<std::vector<std::string>> members_;
  int64_t sites_ms_ = 0;
  std::vector<std::string> landmarks_;
  std::map<uint64_t, Running> running_;
  std::map<std::string, int64_t> rest_until_ms_;  // of a peer's line, while work shares it
  std::map<std::string, int64_t> job_rest_until_ms_;
  uint64_t next_id_;
  int64_t next_ms_ = 0;
  mutable std::optional<Structure> structure_;  // of the records as they are
};

}  // namespace weft::broker
