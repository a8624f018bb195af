// WorkTraffic: which of the rates that the workers of one run report of their messages are
// believed. A worker is a stranger: it may speak of ways that the run's plan uses and that begin at
// the peer of its own stage, once in a while. What numbers can be is the book's to judge
// (links/link_fit.h). Pure; the broker's loop only.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "broker/links/structure.h"
#include "job/plan.h"
#include "job/worker_spec.h"
#include "opdag/graph.h"

namespace weft::broker {

struct CarriedWay {
  LinkKey way;
  Carried carried;
};

class WorkTraffic {
 public:
  // Between two reports of a stage that say something of links; others in between say nothing.
  static constexpr int64_t kEveryMs = 1000;

  WorkTraffic(const opdag::Graph& graph, const job::Plan& plan);

  // told: by whoever runs this stage now. Of ways that are named twice the first counts.
  std::vector<CarriedWay> believed(int32_t stage, const std::vector<job::LinkTraffic>& told,
                                   int64_t now_ms);

 private:
  std::vector<std::string> peers_;  // by stage
  std::set<LinkKey> ways_;
  std::vector<int64_t> next_ms_;  // by stage
};

}  // namespace weft::broker
