// The whole network between some peers, from what was measured of it: every direction that is
// measured or follows from structure, and the lines that flows of a site share. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "broker/links/structure.h"
#include "broker/planner/ways.h"

namespace weft::broker {

struct LinkEstimate {
  std::string from, to;
  double latency_ms = 0;                           // one way
  double latency_low_ms = 0, latency_high_ms = 0;  // the truth is between, up to noise
  double bandwidth_mbit_s = 0;                     // of one flow; 0: unknown
  PathClass path = PathClass::kUnknown;
  bool measured = false;  // itself; else inferred
  bool carried = false;   // its rate is that of real work
  int64_t time_ms = 0;    // of the measurement; inferred: 0
};

struct LinkView {
  std::vector<LinkEstimate> links;  // directions nothing is known of are left out
  std::vector<PlannerAccess> access;

  std::vector<PlannerLink> planner_links() const;
  PlannerWays planner_ways() const { return {planner_links(), access}; }
};

// ids: the peers concerned. landmarks: peers that latencies are bounded by.
LinkView infer_links(const Structure& structure, const std::vector<std::string>& ids,
                     const std::vector<std::string>& landmarks, const LinkOptions& options);

// The same of directions that were measured themselves.
LinkView measured_links(const Structure& structure, const std::vector<std::string>& ids,
                        const std::vector<std::string>& landmarks, const LinkOptions& options);

// What a peer is known to send and receive with beyond its site; 0: unknown.
struct LineView {
  double up_mbit_s = 0, down_mbit_s = 0;
  double shared_up_mbit_s = 0, shared_down_mbit_s = 0;  // of a line that its flows share
  std::vector<std::string> site;                        // others that stand beside it
};
std::optional<LineView> line_of(const Structure& structure, size_t peer);

}  // namespace weft::broker
