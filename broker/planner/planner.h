// The planner, OP-Fence: peers, links and graph costs to a plan and its reason. One pure function,
// the same in the broker, in `weft plan` and in a simulator.
//
// The graph becomes a chain of units with the bytes over every cut (chain.h); peers are clustered
// by bandwidth, orders of them are split exactly and improved (search.h); every plan is judged by
// one model of time and memory (pipeline.h). A plan is never predicted worse than the best single
// peer or the best single site; peers that would not help stay spares.
//
// What is unknown: peers without a speed count as fast as the middle one that has one, or all
// alike; links nobody measured delay nothing if none was, else as the slowest that was. The reason
// says so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "broker/planner/compression.h"
#include "broker/planner/pipeline.h"
#include "broker/planner/ways.h"
#include "job/device_profile.h"
#include "job/plan.h"
#include "job/schedule.h"
#include "job/spec.h"
#include "opdag/graph.h"

namespace weft::broker {

// Small stages on an H200 took up to 191 MiB more than all that is counted of them.
inline constexpr double kLibraryBytes = 256.0 * (1 << 20);

struct PlannerPeer {
  std::string id;
  uint32_t cores = 1;
  uint64_t memory_bytes = 0;  // of the device that computes; 0: unknown, taken as enough
  double gflops = 0;          // it does per second, in the terms of StagePlan::flops; 0: unknown
  double memory_gbyte_s = 0;  // its memory moves; 0: unknown, only gflops count
  double op_us = 0;           // an operator takes at least
  std::shared_ptr<const job::DeviceProfile>
      profile{};          // measured; counts where gflops is not known
  double correction = 1;  // real runs took so many times what was predicted
  uint64_t free_memory_bytes =
      0;              // what others leave of its memory; 0: unknown, taken as all of it
  bool card = false;  // computes, and has that memory
  bool speed_known() const { return gflops > 0 || profile != nullptr; }
  // Whatever the stage: what libraries work in, and what an allocator that takes memory in pieces
  // leaves of them.
  double library_bytes() const { return card ? kLibraryBytes : 0; }
  // Of large products, to tell very many peers apart without a graph; 0: unknown.
  double promised_gflops() const;
};

// In FLOP equivalents, of a peer of unknown speed among others like it.
inline constexpr double kNominalGflops = 1000;

using ScheduleFunction = std::function<std::vector<job::StageActions>(const opdag::StageGraph&,
                                                                      const job::ScheduleOptions&)>;

struct PlannerOptions {
  int32_t max_auto_stages = 32;
  // A further stage must shorten the predicted step by this share, or the peer stays a spare.
  double least_gain = 0.02;
  double memory_share = 0.9;          // of a peer's memory a stage may plan with
  double free_reserve = 0.05;         // of its memory, left of what is free
  size_t most_peers = 512;            // of more, those with room and the most speed are looked at
  std::vector<PlannerAccess> access;  // lines that peers share (network.h)
  MeasuredWays measured;              // what links and access say counts more; empty: nothing
  Compression compression{};          // of what crosses from stage to stage; none has a codec yet
  // What the workers will do; a plan is given out only if this can run to its end.
  ScheduleFunction make_schedule = job::make_schedule;
};

struct PlanAlternative {
  std::string what;  // "best single peer", "best single site"
  std::vector<std::string> peers;
  double step_s = 0;
  // What plans are chosen by: step_s, or what storing checkpoints takes of a step.
  double pace_s = 0;
};

struct PlanLeftOut {
  std::string peer, why;
};

struct PlanReport {
  job::Plan plan;
  Prediction prediction;
  double pace_s = 0;                 // as PlanAlternative has it
  std::string bottleneck;            // in words
  std::string compression = "none";  // its name
  std::vector<PlanAlternative> alternatives;
  std::vector<PlanLeftOut> left_out;
  std::vector<std::vector<std::string>> sites;  // peers that stand close together, largest first
  std::vector<std::string> notes;               // what was assumed, and what was ignored
  bool timed = false;                           // every stage's peer has a known speed
  int32_t micro_batches = 1;
};

// Micro-batches of a step; kInvalid when batch is not a multiple of the exported batch.
Result<int32_t> micro_batches_of(const opdag::Graph& graph, const job::JobSpec& spec);
// First dimension of the graph's bound inputs: the exported batch.
Result<int64_t> exported_batch(const opdag::Graph& graph, const job::JobSpec& spec);

// Errors: kInvalid for more stages than units ("more stages than nodes") or a schedule nobody
// knows, or a compression out of its bounds; kInternal for a schedule that would deadlock;
// kUnavailable for no peers, fewer peers than stages asked, or too little memory for any split.
Result<PlanReport> plan_job(const opdag::Graph& graph, const job::JobSpec& spec,
                            const std::vector<PlannerPeer>& peers,
                            const std::vector<PlannerLink>& links,
                            const PlannerOptions& options = {});

// plan_job without its report.
Result<job::Plan> make_plan(const opdag::Graph& graph, const job::JobSpec& spec,
                            const std::vector<PlannerPeer>& peers,
                            const std::vector<PlannerLink>& links,
                            const PlannerOptions& options = {});

// The same judgement of a plan of somebody else's: its partition, its peers, its schedule and gap.
// kInvalid for a partition that does not fit the graph, a stage without a peer, an unknown peer or
// one with two stages. Too little memory is told in notes.
Result<PlanReport> evaluate_plan(const opdag::Graph& graph, const job::JobSpec& spec,
                                 const job::Plan& plan, const std::vector<PlannerPeer>& peers,
                                 const std::vector<PlannerLink>& links,
                                 const PlannerOptions& options = {});

// A plan as the evaluation model sees it: what its stages compute and keep, what its edges carry.
// peers[k] runs stage k, and is peer k of the result. Links only matter to a compression. kInvalid
// for a partition that does not fit the graph or another number of peers than stages.
Result<Pipeline> pipeline_of_plan(const opdag::Graph& graph, const job::JobSpec& spec,
                                  const job::Plan& plan, const std::vector<PlannerPeer>& peers,
                                  const std::vector<PlannerLink>& links = {},
                                  const PlannerOptions& options = {});

}  // namespace weft::broker
