// ProbePlan: which probes of a book come next. In order: directions that a plan depends on; every
// peer against the landmarks, one after the other; pairs that may stand on one local network by
// what their landmarks say; two flows of a peer at once; sites that may be close to each other,
// where their landmarks do not say how close; what has become old.
//
// For n peers that are about n (landmarks + neighbours + nearest) pairs and 2 n line tests,
// whatever n. A peer takes part in one probe at a time, and so does a site, whose line is one.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "broker/links/landmark_table.h"
#include "broker/links/link_book.h"

namespace weft::broker {

class ProbePlan {
 public:
  ProbePlan(LinkBook& book, int64_t now_ms);
  // Puts them among the book's running tasks, too.
  std::vector<ProbeTask> make();

 private:
  void choose_landmarks();
  void depended();
  void landmarks();
  // Sites as the landmarks see them.
  struct Seen {
    LandmarkTable table;
    std::vector<std::pair<double, size_t>> ranked;  // how far from the first one, where known
    std::vector<size_t> ranks;                      // where in it, in the order of sites
    // Sites no farther apart than that by the first landmark may stand on one local network.
    static double width(double from_first_s, const LinkOptions& options);
  };
  Seen seen() const;
  void neighbours(const Seen& seen);
  void inside_sites();
  void nearest(const Seen& seen);
  // Other sites that it was probed with, landmarks left out.
  size_t tried_by(size_t peer) const;
  void try_beside(const Seen& seen, size_t rank);
  void try_nearest(const Seen& seen, size_t rank);
  bool is_landmark(size_t peer) const;
  void lines();
  void refresh();

  // Both directions of a pair, unless they are known.
  void want(size_t a, size_t b);
  // Whether there is a way to probe either of its directions now.
  bool may_want(size_t a, size_t b) const;
  bool in_trouble(size_t from, size_t to) const;
  void want_direction(size_t from, size_t to);
  bool stale(size_t from, size_t to) const;
  void line_test(size_t peer, bool down);
  // False: somebody is not free.
  bool start(std::vector<size_t> peers, ProbeTask task);
  bool free(size_t peer) const;
  void occupy(size_t peer);
  bool full() const { return book_.running_.size() >= book_.options_.max_running; }
  // Few peers, not all of whom were measured against each other: any two may share a line, so one
  // probe at a time. Of many, whom sites tell apart soon, several go on.
  bool strangers() const;
  bool site_works(size_t site) const;
  // Whether probes may disturb work beside the site now; the jobs whose lines they would.
  bool may_disturb(size_t site, std::set<std::string>& jobs) const;
  int64_t rested_ms(size_t site) const;

  LinkBook& book_;
  const LinkOptions& options_;
  int64_t now_ms_;
  const Structure& s_;
  std::vector<size_t> landmarks_;
  std::set<size_t> taken_sites_;
  std::set<std::string> taken_jobs_;  // with a line in a probe
  std::vector<ProbeTask> tasks_;
};

}  // namespace weft::broker
