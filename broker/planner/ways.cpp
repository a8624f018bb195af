#include "broker/planner/ways.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <unordered_set>

namespace weft::broker {
namespace {

// Peers that a name of a told link stands for.
class Names {
 public:
  explicit Names(const std::vector<PlannerAccess>& groups) {
    for (const PlannerAccess& group : groups) groups_.emplace(group.name, &group.peers);
  }
  std::vector<std::string> peers(const std::string& name) const {
    const auto found = groups_.find(name);
    return found == groups_.end() ? std::vector<std::string>{name} : *found->second;
  }

 private:
  std::map<std::string, const std::vector<std::string>*> groups_;
};

void drop(PlannerAccess& line, bool down) {
  (down ? line.down_mbit_s : line.up_mbit_s) = 0;
  (down ? line.down_assumed : line.up_assumed) = false;
}

void give_way(std::vector<PlannerAccess>& measured, const std::vector<PlannerAccess>& told) {
  std::set<std::string> up, down;  // peers whose line was told
  for (const PlannerAccess& group : told) {
    if (group.up_mbit_s > 0) up.insert(group.peers.begin(), group.peers.end());
    if (group.down_mbit_s > 0) down.insert(group.peers.begin(), group.peers.end());
  }
  for (PlannerAccess& line : measured) {
    const auto any_of = [&](const std::set<std::string>& peers) {
      return std::any_of(line.peers.begin(), line.peers.end(),
                         [&](const std::string& id) { return peers.contains(id); });
    };
    if (any_of(up)) drop(line, false);
    if (any_of(down)) drop(line, true);
  }
}

// A told link over a measured line: the line carries as much. Over one that is assumed: it is not
// assumed any more.
void widen(std::vector<PlannerAccess>& measured, const PlannerWays& told) {
  std::map<std::string, size_t> line_of;
  for (size_t i = 0; i < measured.size(); ++i) {
    for (const std::string& id : measured[i].peers) line_of.emplace(id, i);
  }
  const Names names(told.access);
  const auto line = [&](const std::string& id) {
    const auto found = line_of.find(id);
    return found == line_of.end() ? measured.size() : found->second;
  };
  for (const PlannerLink& link : told.links) {
    for (const std::string& from : names.peers(link.from)) {
      for (const std::string& to : names.peers(link.to)) {
        const size_t out = line(from), in = line(to);
        if (out == in) continue;
        const auto carry = [&](PlannerAccess& over, bool down) {
          if (down ? over.down_assumed : over.up_assumed) drop(over, down);
          double& rate = down ? over.down_mbit_s : over.up_mbit_s;
          if (rate > 0) rate = std::max(rate, link.bandwidth_mbit_s);
        };
        if (out < measured.size()) carry(measured[out], false);
        if (in < measured.size()) carry(measured[in], true);
      }
    }
  }
}

struct Answer {
  std::unordered_set<std::string> ids;
  PlannerWays ways;

  bool of(const std::vector<std::string>& some) const {
    return std::all_of(some.begin(), some.end(),
                       [&](const std::string& id) { return ids.contains(id); });
  }
  PlannerWays between(const std::vector<std::string>& some) const {
    const std::unordered_set<std::string> asked(some.begin(), some.end());
    PlannerWays result;
    for (const PlannerLink& link : ways.links) {
      if (asked.contains(link.from) && asked.contains(link.to)) result.links.push_back(link);
    }
    for (PlannerAccess line : ways.access) {
      std::erase_if(line.peers, [&](const std::string& id) { return !asked.contains(id); });
      if (!line.peers.empty()) result.access.push_back(std::move(line));
    }
    return result;
  }
};

}  // namespace

PlannerWays join_ways(PlannerWays measured, const PlannerWays& told) {
  give_way(measured.access, told.access);
  if (!measured.access.empty()) widen(measured.access, told);
  // Of several that say something of a way the last counts, of several groups of one name the
  // first.
  measured.links.insert(measured.links.end(), told.links.begin(), told.links.end());
  measured.access.insert(measured.access.begin(), told.access.begin(), told.access.end());
  return measured;
}

MeasuredWays without_assumed(MeasuredWays measured) {
  if (!measured) return {};
  return [measured = std::move(measured)](const std::vector<std::string>& ids) {
    PlannerWays ways = measured(ids);
    for (PlannerAccess& line : ways.access) {
      if (line.up_assumed) drop(line, false);
      if (line.down_assumed) drop(line, true);
    }
    return ways;
  };
}

Network joined_network(const std::vector<std::string>& ids, const MeasuredWays& measured,
                       const std::vector<PlannerLink>& links,
                       const std::vector<PlannerAccess>& access) {
  if (!measured) return Network(ids, links, access);
  const PlannerWays ways = join_ways(measured(ids), {links, access});
  return Network(ids, ways.links, ways.access);
}

MeasuredWays remembered(MeasuredWays measured) {
  if (!measured) return {};
  return [measured = std::move(measured),
          known = std::make_shared<Answer>()](const std::vector<std::string>& ids) {
    if (known->of(ids)) return known->between(ids);
    *known = {{ids.begin(), ids.end()}, measured(ids)};
    return known->ways;
  };
}

}  // namespace weft::broker
