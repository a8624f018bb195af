#include "simulate/scenario_links.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <utility>

#include "broker/planner/links_file.h"

namespace weft::simulate {
namespace {

using Direction = std::pair<std::string, std::string>;  // from, to

}  // namespace

Status add_measured_links(std::string_view csv, const std::string& source, Scenario& scenario) {
  broker::PlannerWorld table;
  for (const SiteSpec& site : scenario.sites) {
    table.peers.push_back({site.name});
    table.site_of.push_back(site.family);
  }
  if (Status read = broker::add_links(csv, source, table); !read.ok()) {
    Error error = read.error();
    error.next += error.next.empty() ? "" : "; ";
    error.next += "names, and the rows of a matrix, are here the [[site]]s, in their order";
    return error;
  }
  std::map<Direction, broker::PlannerLink> known;
  for (const broker::PlannerLink& row : table.links) {
    const auto [first, fresh] = known.try_emplace({row.from, row.to}, row);
    const broker::PlannerLink& before = first->second;
    if (fresh ||
        (before.latency_ms == row.latency_ms && before.bandwidth_mbit_s == row.bandwidth_mbit_s)) {
      continue;
    }
    return make_error(
        Code::kInvalid,
        fmt::format("{} says two things of the way from {} to {}", source, row.from, row.to),
        "name a site or the sites it is one of, not both");
  }
  std::set<Direction> linked;
  for (const SiteLink& link : scenario.links) {
    linked.insert({link.from, link.to});
    linked.insert({link.to, link.from});
  }
  size_t opposite = 0;
  for (const auto& [direction, row] : known) {
    scenario.measured_links.push_back(row);
    const Direction back{direction.second, direction.first};
    if (known.contains(back) || linked.contains(back)) continue;
    scenario.measured_links.push_back({row.to, row.from, row.latency_ms, row.bandwidth_mbit_s});
    ++opposite;
  }
  scenario.notes.insert(scenario.notes.end(), table.notes.begin(), table.notes.end());
  if (opposite > 0) {
    scenario.notes.push_back(fmt::format(
        "{} has one direction only of {} ways: the other counts as equal", source, opposite));
  }
  return {};
}

}  // namespace weft::simulate
