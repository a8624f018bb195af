#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/toml.h"
#include "broker/planner/links_file.h"

namespace weft::broker {
namespace {

constexpr size_t kMaxPeers = 4096;
constexpr double kMost = 1e12;  // of any number in the file

// Reads one table; remembers the first error, and which keys are known.
class TableReader {
 public:
  TableReader(const toml::table& table, std::string what) : table_(table), what_(std::move(what)) {}

  double number(const char* key) {
    known_.insert(key);
    const toml::node* node = table_.get(key);
    if (node == nullptr) return 0;
    const auto value = node->value<double>();
    if (!value || !std::isfinite(*value) || *value < 0 || *value > kMost) {
      fail(fmt::format("{}: {} must be a number from 0 to {:g}", what_, key, kMost));
      return 0;
    }
    return *value;
  }
  std::string text(const char* key) {
    known_.insert(key);
    const toml::node* node = table_.get(key);
    if (node == nullptr) return {};
    const auto value = node->value<std::string>();
    if (!value) fail(fmt::format("{}: {} must be a text", what_, key));
    return value.value_or("");
  }
  Status status() {
    for (const auto& [key, node] : table_) {
      if (known_.contains(std::string(key.str()))) continue;
      fail(fmt::format("{}: unknown key {}", what_, key.str()));
    }
    if (error_.empty()) return {};
    return make_error(Code::kInvalid, error_, "see docs/planning.md for the keys");
  }

 private:
  void fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
  }
  const toml::table& table_;
  std::string what_, error_;
  std::set<std::string> known_;
};

Result<std::vector<const toml::table*>> tables_of(const toml::table& document, const char* key,
                                                  const std::string& source) {
  std::vector<const toml::table*> tables;
  const toml::node* node = document.get(key);
  if (node == nullptr) return tables;
  if (const toml::array* array = node->as_array()) {
    for (const toml::node& item : *array) {
      if (item.as_table() == nullptr) break;
      tables.push_back(item.as_table());
    }
    if (tables.size() == array->size()) return tables;
  }
  return make_error(Code::kInvalid, fmt::format("{}: {} must be tables", source, key),
                    fmt::format("write each as [[{}]]", key));
}

Result<PlannerPeer> read_peer(const toml::table& table, const std::string& what,
                              PlannerWorld& world) {
  TableReader reader(table, what);
  PlannerPeer peer;
  peer.id = reader.text("id");
  peer.memory_bytes = static_cast<uint64_t>(reader.number("memory_gib") * (1 << 30));
  peer.gflops = reader.number("gflops");
  peer.memory_gbyte_s = reader.number("memory_gbyte_s");
  peer.op_us = reader.number("op_us");
  world.site_of.push_back(reader.text("site"));
  const double up = reader.number("up_mbit_s"), down = reader.number("down_mbit_s");
  WEFT_TRY_STATUS(reader.status());
  if (peer.id.empty()) {
    return make_error(Code::kInvalid, fmt::format("{} has no id", what), "give every peer an id");
  }
  if (up > 0 || down > 0) world.access.push_back({peer.id, {peer.id}, up, down});
  return peer;
}

Status read_site(const toml::table& table, const std::string& what, PlannerWorld& world) {
  TableReader reader(table, what);
  const std::string name = reader.text("name");
  const double latency = reader.number("latency_ms"), rate = reader.number("bandwidth_mbit_s");
  const double up = reader.number("up_mbit_s"), down = reader.number("down_mbit_s");
  WEFT_TRY_STATUS(reader.status());
  std::vector<std::string> members;
  for (size_t i = 0; i < world.peers.size(); ++i) {
    if (!name.empty() && world.site_of[i] == name) members.push_back(world.peers[i].id);
  }
  if (members.empty()) {
    return make_error(Code::kInvalid, fmt::format("{}: no peer is in site \"{}\"", what, name),
                      "name it in the site of some [[peer]], or leave it out");
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
  WEFT_TRY(const auto peers, tables_of(document, "peer", source));
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
  WEFT_TRY(const auto sites, tables_of(document, "site", source));
  for (size_t i = 0; i < sites.size(); ++i) {
    WEFT_TRY_STATUS(read_site(*sites[i], fmt::format("{}, [[site]] {}", source, i + 1), world));
  }
  return world;
}

}  // namespace weft::broker
