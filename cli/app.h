// What every verb of `weft` shares: options of the whole program, exit codes, output helpers.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace weft::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitRefused = 3;

struct Globals {
  std::string output = "text";  // or "json"
  std::string context;          // name of a login; empty: the current one
  int exit_code = kExitOk;
  bool json() const { return output == "json"; }
};

// Runs a verb's body: prints the error and sets the exit code when it fails.
void run_verb(Globals& globals, const std::function<Status()>& body);

// Prints to standard output; a table's columns are padded, the first row is its heading.
void print_json(const nlohmann::json& value);
void print_table(const std::vector<std::vector<std::string>>& rows);
void warn(const std::string& message);  // to standard error

// "1.5 MiB", "3 s ago", "-" for what is absent.
std::string human_bytes(double bytes);
std::string human_count(double count);
std::string human_duration(double seconds);
std::string ago(int64_t time_ms);

// One function a verb family, each in verbs/<name>.cpp.
void add_model(CLI::App& app, Globals& globals);
void add_data(CLI::App& app, Globals& globals);
void add_up(CLI::App& app, Globals& globals);
void add_down(CLI::App& app, Globals& globals);
void add_login(CLI::App& app, Globals& globals);
void add_job_submit(CLI::App& job, Globals& globals);
void add_job_show(CLI::App& job, Globals& globals);
void add_job_watch(CLI::App& job, Globals& globals);
void add_job_change(CLI::App& job, Globals& globals);
void add_peer(CLI::App& app, Globals& globals);
void add_link(CLI::App& app, Globals& globals);
void add_plan(CLI::App& app, Globals& globals);
void add_simulate(CLI::App& app, Globals& globals);
void add_checkpoint(CLI::App& app, Globals& globals);

}  // namespace weft::cli
