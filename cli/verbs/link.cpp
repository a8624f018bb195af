// weft link list [PEER...]
#include <fmt/format.h>

#include "cli/api_client.h"

namespace weft::cli {
namespace {

using nlohmann::json;

std::string number(const json& value, const char* form) {
  return value.is_number() ? fmt::format(fmt::runtime(form), value.get<double>()) : "-";
}

// What structure says of a latency is between two bounds.
std::string latency_text(const json& link) {
  const double low = link.value("latency_low_ms", 0.0), high = link.value("latency_high_ms", 0.0);
  const std::string middle = number(link.at("latency_ms"), "{:.4g} ms");
  return high > low ? fmt::format("{} ({:.4g} to {:.4g})", middle, low, high) : middle;
}

// Older brokers do not say by what a rate is known.
const char* known_text(const json& link) {
  if (!link.value("measured", false)) return "inferred";
  return link.value("known_by", "") == "work" ? "by work" : "measured";
}

void print_links(const json& answer) {
  std::vector<std::vector<std::string>> rows = {
      {"FROM", "TO", "LATENCY", "MBIT/S", "KNOWN", "PATH", "AGE"}};
  for (const json& link : answer.at("links")) {
    const json time = link.value("time_ms", json());
    rows.push_back({link.value("from", ""), link.value("to", ""), latency_text(link),
                    number(link.at("bandwidth_mbit_s"), "{:.4g}"), known_text(link),
                    link.value("path", ""), time.is_number() ? ago(time.get<int64_t>()) : "-"});
  }
  print_table(rows);
  for (const json& line : answer.at("lines")) {
    const auto rate = [&](const std::string& direction) {
      const bool assumed = line.value(direction + "_assumed", false);
      return number(line.at(direction + "_mbit_s"), "{:.4g}") + (assumed ? " (assumed)" : "");
    };
    fmt::print("one line of {}: {} Mbit/s up, {} down\n",
               fmt::join(line.at("peers").get<std::vector<std::string>>(), ", "), rate("up"),
               rate("down"));
  }
  if (!answer.value("inferred", true)) {
    fmt::print("of so many peers only measured links are listed: name some\n");
  }
}

}  // namespace

void add_link(CLI::App& app, Globals& globals) {
  CLI::App* link = app.add_subcommand("link", "the ways between the machines of the cluster");
  link->require_subcommand(1);
  auto peers = std::make_shared<std::vector<std::string>>();
  auto* list = link->add_subcommand("list", "every direction that is known, measured or inferred");
  list->add_option("peer", *peers, "only between these; else between all");
  list->callback([peers, &globals] {
    run_verb(globals, [&]() -> Status {
      WEFT_TRY(ApiClient client, ApiClient::open(globals));
      std::string target = "/api/v1/links";
      for (size_t i = 0; i < peers->size(); ++i) {
        target += (i == 0 ? "?peers=" : ",") + path_segment((*peers)[i]);
      }
      WEFT_TRY(const json answer, client.get(target));
      if (globals.json()) {
        print_json(answer);
      } else {
        print_links(answer);
      }
      return {};
    });
  });
}

}  // namespace weft::cli
