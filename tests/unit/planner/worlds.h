// Made-up clusters and a job to plan over them, for tests and benchmarks of whole plans.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "broker/planner/links_file.h"
#include "broker/planner/planner.h"
#include "simulate/transformer.h"
#include "tests/unit/planner/problems.h"

namespace weft::broker::testing {

// Sites of 10 Gbit/s, 8 to 500 Mbit/s and 5 to 100 ms between them, every pair measured; the cards
// of a site are of one kind, each in its own state.
struct SiteShape {
  int32_t sites, each;
  double memory_gib;
};

inline PlannerWorld world_of(uint64_t seed, const SiteShape& shape) {
  Rng rng(seed);
  PlannerWorld world;
  const auto sites = static_cast<size_t>(shape.sites), each = static_cast<size_t>(shape.each);
  std::vector<std::vector<std::pair<double, double>>> ways(sites);
  for (size_t a = 0; a < sites; ++a) {
    for (size_t b = 0; b < a; ++b) {
      ways[a].emplace_back(5 + 95 * rng.uniform(), 8 + 492 * rng.uniform());
    }
  }
  for (size_t site = 0; site < sites; ++site) {
    const double gflops = 1000 + 39000 * rng.uniform();
    for (size_t i = 0; i < each; ++i) {
      PlannerPeer peer{fmt::format("p-{}-{}", site, i)};
      peer.memory_bytes = static_cast<uint64_t>(shape.memory_gib * 1024 * (1 << 20));
      peer.gflops = gflops * between(rng, 0.4, 2.5);
      peer.memory_gbyte_s = 500;
      peer.op_us = 10;
      world.peers.push_back(peer);
      world.site_of.push_back(fmt::format("{}", site));
    }
  }
  for (size_t a = 0; a < world.peers.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      const size_t from = a / each, to = b / each;
      const auto [latency_ms, mbit_s] = from == to ? std::pair{0.2, 10000.0} : ways[from][to];
      world.links.push_back({world.peers[a].id, world.peers[b].id, latency_ms, mbit_s});
      world.links.push_back({world.peers[b].id, world.peers[a].id, latency_ms, mbit_s});
    }
  }
  return world;
}

// The peers of one of them, with the links between these.
inline PlannerWorld site_of(const PlannerWorld& world, int32_t site) {
  PlannerWorld part;
  std::set<std::string> inside;
  for (size_t p = 0; p < world.peers.size(); ++p) {
    if (world.site_of[p] != fmt::format("{}", site)) continue;
    part.peers.push_back(world.peers[p]);
    inside.insert(world.peers[p].id);
  }
  for (const PlannerLink& link : world.links) {
    if (inside.contains(link.from) && inside.contains(link.to)) part.links.push_back(link);
  }
  return part;
}

// A job of a transformer of 24 layers, 64 micro-batches a step.
struct PlannedJob {
  opdag::Graph graph;
  job::JobSpec spec = simulate::transformer_job();

  PlannedJob() {
    simulate::TransformerSpec model;
    model.layers = 24;
    model.width = 1024;
    model.heads = 16;
    Result<opdag::Graph> made = simulate::transformer_graph(model);
    WEFT_CHECK(made.ok());
    graph = std::move(made).value();
    spec.train.batch = 64;
  }

  // Infinite where there is no room.
  double step_s(const PlannerWorld& world, job::PipelineSchedule schedule) {
    spec.pipeline.schedule = schedule;
    const auto report = plan_job(graph, spec, world.peers, world.links);
    return report.ok() ? report->prediction.step_s : HUGE_VAL;
  }
};

}  // namespace weft::broker::testing
