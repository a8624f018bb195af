// Small scenarios as text, and a model that needs no export, for tests of the simulator.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "simulate/simulate.h"

namespace weft::simulate::testing {

inline constexpr const char* kTransformer =
    "[job.transformer]\nlayers = 6\nwidth = 256\nheads = 4\ntokens = 64\nvocabulary = 1000\n";

// Six peers at one site, one job of three stages; `more` is appended to the top, `tables` behind.
inline std::string one_site(const std::string& top = "", const std::string& tables = "",
                            const std::string& job = "") {
  return top + R"(
[[site]]
name = "lan"
latency_ms = 0.5
bandwidth_mbit_s = 1000
[[peers]]
name = "peer"
site = "lan"
count = 6
memory_gib = 4
gflops = 200
memory_gbyte_s = 20
op_us = 5
[[job]]
name = "gpt"
steps = 20
batch = 8
stages = 3
)" + job +
         kTransformer + tables;
}

inline Result<Outcome> play(const std::string& text, const SimulateOptions& options = {}) {
  WEFT_TRY(const Scenario scenario, parse_scenario(text, "scenario.toml"));
  std::vector<JobModel> models;
  for (const JobGroup& job : scenario.jobs) {
    WEFT_TRY(JobModel model, model_of(job, nullptr));
    models.push_back(std::move(model));
  }
  return simulate(scenario, models, options);
}

inline Outcome played(const std::string& text, const SimulateOptions& options = {}) {
  Result<Outcome> outcome = play(text, options);
  if (!outcome.ok()) {
    ADD_FAILURE() << outcome.error().text();
    return {};
  }
  return std::move(outcome).value();
}

}  // namespace weft::simulate::testing
