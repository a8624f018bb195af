// links.csv and peers.toml: what `weft plan`, benchmarks and laboratories plan with, as text. The
// forms are described in docs/planning.md. Pure; errors name the line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "broker/planner/planner.h"

namespace weft::broker {

struct PlannerWorld {
  std::vector<PlannerPeer> peers;
  std::vector<std::string> site_of;  // of each peer; empty: none
  std::vector<PlannerLink> links;
  std::vector<PlannerAccess> access;
  std::vector<std::string> notes;  // what was ignored
};

// Peers, and the links inside the sites that say how fast they are.
Result<PlannerWorld> parse_peers(std::string_view toml, const std::string& source);

// Adds the links of a pair list (names are peers or sites) or of a matrix (row sends to column, in
// the order of world.peers) to a world. A world without peers gets one of unknown speed for each
// name or row.
Status add_links(std::string_view csv, const std::string& source, PlannerWorld& world);

}  // namespace weft::broker
