// weft peer list | get | invite | drain | remove
#include <fmt/format.h>

#include "cli/api_client.h"

namespace weft::cli {
namespace {

using nlohmann::json;

std::string path_of(const std::string& id, const char* tail = "") {
  return "/api/v1/peers/" + path_segment(id) + tail;
}

std::string assignment_text(const json& peer) {
  const json assignment = peer.value("assignment", json());
  if (assignment.is_object()) {
    return fmt::format("{} stage {}", assignment.value("job", ""), assignment.value("stage", 0));
  }
  return peer.value("spare", false) ? "spare" : "-";
}

void print_peers(const json& answer) {
  std::vector<std::vector<std::string>> rows = {
      {"ID", "NAME", "STATE", "DEVICE", "CORES", "MEMORY", "HOST", "SEEN", "ASSIGNMENT"}};
  for (const json& peer : answer.at("peers")) {
    const std::string device = peer.value("device_name", "");
    rows.push_back({peer.value("id", ""), peer.value("name", ""), peer.value("state", ""),
                    device.empty() ? peer.value("device", "") : device,
                    std::to_string(peer.value("cores", 0)),
                    human_bytes(peer.value("memory_bytes", 0.0)), peer.value("host", ""),
                    ago(peer.value("last_seen_ms", int64_t{0})), assignment_text(peer)});
  }
  print_table(rows);
}

// A class a row: an operator's microseconds, Gflop/s, GB/s, forward and backward.
void print_costs(const std::string& precision, const json& classes) {
  std::vector<std::vector<std::string>> rows = {{precision, "FORWARD us", "GFLOP/s", "GB/s",
                                                 "ERROR", "BACKWARD us", "GFLOP/s", "GB/s",
                                                 "ERROR"}};
  for (const auto& [name, cost] : classes.items()) {
    std::vector<std::string> row{name};
    for (const char* direction : {"forward", "backward"}) {
      const json& pass = cost.at(direction);
      const auto number = [&](const char* key) {
        return pass.at(key).is_number() ? fmt::format("{:.4g}", pass.at(key).get<double>()) : "-";
      };
      row.insert(row.end(), {number("op_us"), number("gflops"), number("gbyte_s"),
                             fmt::format("{:.0f} %", 100 * pass.value("error", 0.0))});
    }
    rows.push_back(std::move(row));
  }
  fmt::print("\n");
  print_table(rows);
}

std::string memory_text(const json& peer) {
  const std::string all = human_bytes(peer.value("memory_bytes", 0.0));
  const json free = peer.value("free_memory_bytes", json());
  return free.is_number() ? fmt::format("{} of {} free", human_bytes(free.get<double>()), all)
                          : fmt::format("{}, how much is free is not known", all);
}

void print_peer(const json& peer) {
  fmt::print("{:<16} {}\n", "memory", memory_text(peer));
  for (const auto& [key, value] : peer.items()) {
    if (key == "profile" && value.is_object()) continue;
    fmt::print("{:<16} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  const json profile = peer.value("profile", json());
  if (!profile.is_object()) return;
  const auto measured_ms = profile.value("measured_ms", int64_t{0});
  fmt::print("\nmeasured{} in {:.1f} s with {} threads; free memory then {} of {}\n",
             measured_ms > 0 ? " " + ago(measured_ms) : "", profile.value("seconds", 0.0),
             profile.value("threads", 0), human_bytes(profile.value("memory_free_bytes", 0.0)),
             human_bytes(profile.value("memory_total_bytes", 0.0)));
  const auto rate = [&](const char* key) { return profile.value(key, json()); };
  if (rate("to_device_gbyte_s").is_number() && rate("from_device_gbyte_s").is_number()) {
    fmt::print("copies to the device {:.3g} GB/s, from it {:.3g} GB/s\n",
               rate("to_device_gbyte_s").get<double>(), rate("from_device_gbyte_s").get<double>());
  }
  for (const char* precision : {"fp32", "bf16"}) print_costs(precision, profile.at(precision));
}

Status call(const std::string& method, const std::string& target, const json& body,
            Globals& globals, void (*print)(const json&)) {
  WEFT_TRY(ApiClient client, ApiClient::open(globals));
  WEFT_TRY(json answer, client.call(method, target, body));
  if (globals.json()) {
    print_json(answer);
  } else if (print != nullptr) {
    print(answer);
  }
  return {};
}

void add_one(CLI::App& peer, Globals& globals, const char* name, const char* help,
             const std::string& method, const char* tail, void (*print)(const json&)) {
  auto id = std::make_shared<std::string>();
  auto* verb = peer.add_subcommand(name, help);
  verb->add_option("peer", *id, "peer id")->required();
  verb->callback([=, &globals] {
    run_verb(globals, [&] {
      const json body = method == "POST" ? json::object() : json();
      return call(method, path_of(*id, tail), body, globals, print);
    });
  });
}

void print_invite(const json& answer) {
  fmt::print("{}\n", answer.value("address", ""));
}

void add_invite(CLI::App& peer, Globals& globals) {
  auto ttl_s = std::make_shared<int64_t>(3600);
  auto uses = std::make_shared<int>(1);
  auto* verb = peer.add_subcommand("invite", "print an address for `weftd join ADDRESS`");
  verb->add_option("--ttl", *ttl_s, "seconds the address is valid")->check(CLI::PositiveNumber);
  verb->add_option("--uses", *uses, "peers that may join with it")->check(CLI::PositiveNumber);
  verb->callback([=, &globals] {
    run_verb(globals, [&] {
      return call("POST", "/api/v1/invites", {{"ttl_s", *ttl_s}, {"uses", *uses}}, globals,
                  print_invite);
    });
  });
}

}  // namespace

void add_peer(CLI::App& app, Globals& globals) {
  CLI::App* peer = app.add_subcommand("peer", "the machines of the cluster");
  peer->require_subcommand(1);
  auto* list = peer->add_subcommand("list", "every peer and what it does");
  list->callback([&globals] {
    run_verb(globals, [&] { return call("GET", "/api/v1/peers", nullptr, globals, print_peers); });
  });
  add_one(*peer, globals, "get", "one peer, whole", "GET", "", print_peer);
  add_one(*peer, globals, "drain", "let a peer finish its work and leave", "POST", "/drain",
          print_peer);
  add_one(*peer, globals, "remove", "revoke a peer's keys at once", "DELETE", "", nullptr);
  add_invite(*peer, globals);
}

}  // namespace weft::cli
