#include <fmt/format.h>

#include <set>

#include "base/toml_table.h"
#include "broker/planner/links_file.h"

namespace weft::broker {
namespace {

constexpr size_t kMaxPeers = 4096;
constexpr const char* kHelp = "see docs/planning.md for the keys";

Result<PlannerPeer> read_peer(const toml::table& table, const std::string& what,
                              PlannerWorld& world) {
  TomlTable reader(table, what);
  PlannerPeer peer;
  peer.id = reader.text("id");
  peer.memory_bytes = static_cast<uint64_t>(reader.number("memory_gib") * (1 << 30));
  peer.gflops = reader.number("gflops");
  peer.memory_gbyte_s = reader.number("memory_gbyte_s");
  peer.op_us = reader.number("op_us");
  world.site_of.push_back(reader.text("site"));
  const double up = reader.number("up_mbit_s"), down = reader.number("down_mbit_s");
  WEFT_TRY_STATUS(reader.status(kHelp));
  if (peer.id.empty()) {
    return make_error(Code::kInvalid, fmt::format("{} has no id", what), "give every peer an id");
  }
  if (up > 0 || down > 0) world.access.push_back({peer.id, {peer.id}, up, down});
  return peer;
}

Status read_site(const toml::table& table, const std::string& what, PlannerWorld& world) {
  TomlTable reader(table, what);
  const std::string name = reader.text("name");
  const double latency = reader.number("latency_ms"), rate = reader.number("bandwidth_mbit_s");
  const double up = reader.number("up_mbit_s"), down = reader.number("down_mbit_s");
  WEFT_TRY_STATUS(reader.status(kHelp));
  std::vector<std::string> members;
  for (size_t i = 0; i < world.peers.size(); ++i) {
    if (!name.empty() && world.site_of[i] == name) members.push_back(world.peers[i].id);
  }
  if (members.empty()) {
    return make_error(Code::kInvalid, fmt::format("{}: no peer is in site \"{}\"", what, name),
                      "name it in the site of some [[peer]], or leave it out");
  }
  if (rate == 0 && table.contains("bandwidth_mbit_s")) {
    return make_error(Code::kInvalid, fmt::format("{}: bandwidth_mbit_s is 0", what),
                      "leave it out where nothing limits what goes between two of its peers");
  }
  if (up > 0 || down > 0) world.access.push_back({"site " + name, members, up, down});
  if (rate == 0 && latency == 0) return {};
  for (const std::string& from : members) {
    for (const std::string& to : members) {
      if (from != to) world.links.push_back({from, to, latency, rate});
    }
  }
  return {};
}

}  // namespace

Result<PlannerWorld> parse_peers(std::string_view text, const std::string& source) {
  WEFT_TRY(const toml::table document, parse_toml(text, source));
  for (const auto& [key, node] : document) {
    if (key.str() == "peer" || key.str() == "site") continue;
    return make_error(Code::kInvalid, fmt::format("{}: unknown key {}", source, key.str()),
                      "the file has [[peer]] and [[site]] tables");
  }
  PlannerWorld world;
  WEFT_TRY(const auto peers, toml_tables(document, "peer", source));
  if (peers.empty() || peers.size() > kMaxPeers) {
    return make_error(Code::kInvalid, fmt::format("{} has {} [[peer]] tables, 1 to {} are planned "
                                                  "with",
                                                  source, peers.size(), kMaxPeers));
  }
  std::set<std::string> ids;
  for (size_t i = 0; i < peers.size(); ++i) {
    const std::string what = fmt::format("{}, [[peer]] {}", source, i + 1);
    WEFT_TRY(PlannerPeer peer, read_peer(*peers[i], what, world));
    if (!ids.insert(peer.id).second) {
      return make_error(Code::kInvalid, fmt::format("{}: {} is there twice", what, peer.id));
    }
    world.peers.push_back(std::move(peer));
  }
  WEFT_TRY(const auto sites, toml_tables(document, "site", source));
  for (size_t i = 0; i < sites.size(); ++i) {
    WEFT_TRY_STATUS(read_site(*sites[i], fmt::format("{}, [[site]] {}", source, i + 1), world));
  }
  return world;
}

}  // namespace weft::broker
