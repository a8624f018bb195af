#include "broker/planner/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <future>
#include <limits>
#include <map>
#include <numeric>

#include "base/os/signals.h"
#include "broker/planner/chain.h"
#include "broker/planner/cost.h"
#include "broker/planner/explain.h"
#include "broker/planner/realise.h"
#include "broker/planner/search.h"
#include "job/names.h"
#include "opdag/cut.h"

namespace weft::broker {
namespace {

// Plays the plan's schedule with the credits the workers will have. Every further micro-batch
// repeats what those before it did, so of very many only some are played: these bounds took 0.1 to
// 0.25 s over chains and over 32 stages with an edge between any two.
Status check_schedule(const PlanInputs& in, const Realised& chosen) {
  constexpr size_t kMessages = 500000, kLeastMicroBatches = 64;
  const opdag::StageGraph& graph = chosen.pipeline.graph;
  const size_t a_micro_batch = graph.edges.size() + static_cast<size_t>(graph.stages);
  const size_t most = std::max(kLeastMicroBatches, kMessages / a_micro_batch);
  job::ScheduleOptions schedule = in.schedule;
  schedule.gap = chosen.gap;
  schedule.micro_batches =
      static_cast<int32_t>(std::min(static_cast<size_t>(in.schedule.micro_batches), most));
  const Status runs =
      job::check_runnable(graph, in.options.make_schedule(graph, schedule), chosen.gap);
  if (runs.ok()) return {};
  return make_error(Code::kInternal,
                    fmt::format("the plan of {} stages under {} cannot run: {}", graph.stages,
                                job::name_of(in.schedule.kind), runs.error().message),
                    "ask for another pipeline.schedule or another number of stages, and report it");
}

Status check_asked(const opdag::Cuts& cuts, int32_t asked, size_t peers) {
  const size_t units = cuts.units().size();
  if (asked > static_cast<int32_t>(units)) {
    return make_error(Code::kInvalid,
                      fmt::format("more stages than nodes: {} stages asked, the graph can be cut "
                                  "into at most {} piece{}",
                                  asked, units, units == 1 ? "" : "s"),
                      fmt::format("ask for at most {} stage{}", units, units == 1 ? "" : "s"));
  }
  if (peers == 0) {
    return make_error(Code::kUnavailable, "no peers: none is idle",
                      "invite machines with `weft peer invite`, or start some with `weft up`");
  }
  if (asked > static_cast<int32_t>(peers)) {
    return make_error(Code::kUnavailable,
                      fmt::format("{} stages need {} peers, {} {} idle", asked, asked, peers,
                                  peers == 1 ? "is" : "are"),
                      "add peers or ask for fewer stages");
  }
  return {};
}

// Of very many peers those that promise most: not without any room, speed first, memory among
// equals.
std::vector<PlannerPeer> most_promising(std::vector<PlannerPeer> peers,
                                        const PlannerOptions& options) {
  if (peers.size() <= options.most_peers) return peers;
  std::stable_sort(peers.begin(), peers.end(), [&](const PlannerPeer& a, const PlannerPeer& b) {
    const bool room = room_of(a, options) > 0;
    if (room != (room_of(b, options) > 0)) return room;
    if (a.promised_gflops() != b.promised_gflops()) {
      return a.promised_gflops() > b.promised_gflops();
    }
    return a.memory_bytes > b.memory_bytes;
  });
  peers.resize(options.most_peers);
  return peers;
}

bool any_timed(const PlanInputs& in) {
  return std::any_of(in.speed_known.begin(), in.speed_known.end(), [](bool k) { return k; });
}

Problem problem_of(const PlanInputs& in, const GraphChain& chain, double memory_share) {
  Problem problem = chain.problem;
  problem.network = in.network;
  problem.schedule = in.schedule;
  problem.stages = in.spec.pipeline.stages;
  problem.most_stages = std::max(in.options.max_auto_stages, problem.stages);
  problem.recompute = in.spec.pipeline.recompute;
  problem.gap = in.spec.pipeline.gap > 0 ? in.spec.pipeline.gap : any_timed(in) ? 0 : 1;
  problem.agrees = in.spec.train.stages_agree();
  problem.compressor = in.compressor;
  for (const double step_s : in.store_s) {
    problem.store_s.push_back(step_s / in.schedule.micro_batches);
  }
  for (size_t peer = 0; peer < in.peers.size(); ++peer) {
    problem.memory_bytes.push_back(memory_share * room_of(in, static_cast<int32_t>(peer)));
    problem.memory_speed.push_back(memory_speed_of(in.peers[peer]));
  }
  return problem;
}

std::optional<Realised> realise_layout(const PlanInputs& in, const GraphChain& chain,
                                       const Layout& layout) {
  std::vector<int32_t> ends;
  for (const int32_t end : layout.ends) ends.push_back(chain.cuts[static_cast<size_t>(end)]);
  Result<opdag::Partition> partition = in.costs.cuts.split_at(ends);
  if (!partition.ok()) return std::nullopt;
  Result<Realised> realised = realise(in, std::move(partition).value(), layout.peers);
  if (!realised.ok() || !settle_memory(in, *realised)) return std::nullopt;
  return std::move(realised).value();
}

// Clearly: by so much. Where storing checkpoints sets the pace of both, by their steps: the way to
// the broker is a guess.
bool quicker(const Realised& a, const Realised& b, double gain) {
  constexpr double kSame = 1 + 1e-9;
  if (a.pace_s < b.pace_s * (1 - gain)) return true;
  return a.pace_s <= kSame * b.pace_s && a.step_s < b.step_s * (1 - gain);
}

// The fewest stages that no larger number beats by the least gain for good; never worse than the
// best single peer or site.
size_t pick(const std::vector<Realised>& plans, double least_gain) {
  std::map<size_t, size_t> best_of;  // by number of stages
  for (size_t i = 0; i < plans.size(); ++i) {
    const auto [known, added] = best_of.try_emplace(plans[i].peers.size(), i);
    if (!added && quicker(plans[i], plans[known->second], 0)) known->second = i;
  }
  size_t chosen = best_of.begin()->second;
  for (const auto& [stages, plan] : best_of) {
    if (quicker(plans[plan], plans[chosen], least_gain)) chosen = plan;
  }
  return chosen;
}

// More stages than peers that can hold any piece; names some that cannot.
std::optional<Error> too_few_with_room(const PlanInputs& in, const GraphChain& chain) {
  const Chain& costs = chain.problem.chain;
  double least = std::numeric_limits<double>::infinity();
  for (int32_t cut = 0; cut < costs.units; ++cut) {
    least = std::min(least, run_bytes(costs, costs.at(cut, cut + 1), 1));
  }
  constexpr size_t kNamed = 3;
  std::vector<std::string> named;
  size_t small = 0;
  for (size_t peer = 0; peer < in.peers.size(); ++peer) {
    const double room = room_of(in, static_cast<int32_t>(peer));
    if (room >= least) continue;
    if (++small <= kNamed) {
      named.push_back(fmt::format("{} with {} to plan with", in.peers[peer].id, mebibytes(room)));
    }
  }
  const size_t left = in.peers.size() - small;
  if (left == 0 || static_cast<size_t>(in.spec.pipeline.stages) <= left) return std::nullopt;
  return make_error(
      Code::kUnavailable,
      fmt::format("{} stages need as many peers with room for a piece of the model, the least of "
                  "which needs {}; {} of {} {} too small: {}{}",
                  in.spec.pipeline.stages, mebibytes(least), small, in.peers.size(),
                  small == 1 ? "is" : "are", fmt::join(named, ", "),
                  small > kNamed ? fmt::format(" and {} more", small - kNamed) : ""),
      fmt::format("ask for at most {} stage{}, or add peers", left, left == 1 ? "" : "s"));
}

Error no_room(const PlanInputs& in, const GraphChain& chain) {
  if (auto error = too_few_with_room(in, chain)) return std::move(*error);
  const Chain& costs = chain.problem.chain;
  const int32_t asked = in.spec.pipeline.stages;
  double unit = 0, total = 0;
  int32_t largest = 0;
  for (int32_t cut = 0; cut < costs.units; ++cut) {
    const size_t run = costs.at(cut, cut + 1);
    unit = std::max(unit, costs.fixed_bytes[run] + costs.stash_bytes[run]);
  }
  for (size_t peer = 0; peer < in.peers.size(); ++peer) {
    const auto at = static_cast<int32_t>(peer);
    total += room_of(in, at);
    if (room_of(in, at) > room_of(in, largest)) largest = at;
  }
  const size_t whole = costs.at(0, costs.units);
  const PlannerPeer& best = in.peers[static_cast<size_t>(largest)];
  return make_error(
      Code::kUnavailable,
      fmt::format("too little memory for {}: the job needs about {} for weights, gradients, "
                  "optimizer and one micro-batch's activations, {} in one piece; {} peer{} have {} "
                  "to plan with, the largest ({}) {} of its {}{}",
                  asked == 0   ? "any number of stages"
                  : asked == 1 ? "1 stage"
                               : fmt::format("{} stages", asked),
                  mebibytes(costs.fixed_bytes[whole] + costs.stash_bytes[whole]), mebibytes(unit),
                  in.peers.size(), in.peers.size() == 1 ? "" : "s", mebibytes(total), best.id,
                  mebibytes(room_of(in, largest)),
                  mebibytes(static_cast<double>(best.memory_bytes)),
                  room_of(in, largest) < room_if_free(in, largest)
                      ? fmt::format(", of which {} are free",
                                    mebibytes(static_cast<double>(best.free_memory_bytes)))
                      : ""),
      asked > 0 && static_cast<size_t>(asked) < in.peers.size()
          ? "add peers, ask for more stages, or export a smaller micro-batch"
          : "add peers, or export a smaller micro-batch");
}

struct Candidates {
  std::vector<Realised> plans;
  std::optional<Realised> single_peer, single_site;
  std::vector<std::vector<int32_t>> sites;
  bool fits = false;  // by the chain's memory some layout does
};

Candidates candidates_of(const PlanInputs& in, const GraphChain& chain, double memory_share) {
  SearchOptions effort;
  // Where nothing was measured, few orders of peers differ.
  if (!in.network.measured()) effort.operations /= 10;
  Found found = search(problem_of(in, chain, memory_share), effort);
  Candidates result;
  result.sites = std::move(found.sites);
  result.fits = !found.layouts.empty();
  const auto add = [&](const std::optional<Scored>& scored, std::optional<Realised>& place) {
    if (!scored) return;
    place = realise_layout(in, chain, scored->layout);
    if (place) result.plans.push_back(*place);
  };
  add(found.single_peer, result.single_peer);
  add(found.single_site, result.single_site);
  const auto added = [](const std::optional<Scored>& single, const Scored& scored) {
    return single && single->layout == scored.layout;
  };
  for (const Scored& scored : found.layouts) {
    if (added(found.single_peer, scored) || added(found.single_site, scored)) continue;
    if (auto plan = realise_layout(in, chain, scored.layout)) {
      result.plans.push_back(std::move(*plan));
    }
  }
  return result;
}

// The chain's memory is the graph's but for values that follow their users over a cut; where that
// makes every plan too big, search with less.
Result<Candidates> find_candidates(const PlanInputs& in, const GraphChain& chain) {
  Candidates candidates;
  for (const double share : {1.0, 0.95, 0.85, 0.7}) {
    candidates = candidates_of(in, chain, share);
    WEFT_TRY_STATUS(in.compressor.status());
    if (!candidates.plans.empty() || !candidates.fits) break;
  }
  return candidates;
}

// The plan to take of some, which is no worse than the best single peer or site.
Realised choose(const Candidates& candidates, double least_gain) {
  Realised chosen = candidates.plans[pick(candidates.plans, least_gain)];
  for (const auto& single : {candidates.single_peer, candidates.single_site}) {
    if (single && single->pace_s < chosen.pace_s) chosen = *single;
  }
  return chosen;
}

void add_candidates(const Candidates& others, Candidates& candidates) {
  candidates.plans.insert(candidates.plans.end(), others.plans.begin(), others.plans.end());
  for (const auto place : {&Candidates::single_peer, &Candidates::single_site}) {
    const std::optional<Realised>& other = others.*place;
    std::optional<Realised>& own = candidates.*place;
    if (other && (!own || other->pace_s < own->pace_s)) own = other;
  }
}

// Adds what was found for another schedule.
void add_played(const PlanInputs& in, const Candidates& others, Candidates& candidates) {
  Candidates played;
  for (Realised plan : others.plans) {
    if (settle_memory(in, plan)) played.plans.push_back(std::move(plan));
  }
  for (const auto place : {&Candidates::single_peer, &Candidates::single_site}) {
    std::optional<Realised> plan = others.*place;
    if (plan && settle_memory(in, *plan)) played.*place = std::move(plan);
  }
  add_candidates(played, candidates);
}

// Where some peer's speed is not known a step's time is a guess.
void drop_untimed(Candidates& candidates) {
  std::erase_if(candidates.plans, [](const Realised& plan) { return !plan.timed; });
  for (const auto place : {&Candidates::single_peer, &Candidates::single_site}) {
    std::optional<Realised>& plan = candidates.*place;
    if (plan && !plan->timed) plan.reset();
  }
}

// Of one schedule, and for "auto" of ZB-H1, too; its plans are all timed.
struct Searched {
  Candidates plain;
  std::optional<Candidates> split;
};

// The same layout need not be best under both schedules, and ZB-H1 needs more memory. So each is
// searched, at the same time, and each plays what was found for the other. Half of the work for
// each finds plans of up to 1.3 times the step (bench/planner --only auto).
Result<Searched> search_both(const PlanInputs& in, const PlanInputs& split,
                             const GraphChain& chain) {
  std::future<Result<Candidates>> other = std::async(std::launch::async, [&] {
    os::name_thread("weft-plan");
    return find_candidates(split, chain);
  });
  Result<Candidates> own = find_candidates(in, chain);
  WEFT_TRY(Candidates zero, other.get());
  WEFT_TRY(Candidates found, std::move(own));
  Candidates played;
  add_played(in, zero, played);
  add_played(split, found, zero);
  add_candidates(played, found);
  drop_untimed(zero);
  Searched result{std::move(found), {}};
  if (!zero.plans.empty()) result.split = std::move(zero);
  return result;
}

// ZB-H1 fills idle time with gradients of weights at the same memory. It is taken where it gains
// the least worth having, or where one of its single sites is better than what was chosen.
void try_zero_bubble(PlanInputs& in, const Candidates& others, double least_gain,
                     Candidates& candidates, Realised& chosen) {
  Realised best = choose(others, least_gain);
  const std::optional<Realised>& site = others.single_site;
  const bool better =
      best.pace_s < chosen.pace_s * (1 - least_gain) || (site && site->pace_s < chosen.pace_s);
  if (site && (!candidates.single_site || site->pace_s < candidates.single_site->pace_s)) {
    candidates.single_site = site;
  }
  if (!better) return;
  in.schedule.kind = job::PipelineSchedule::kZbH1;
  chosen = std::move(best);
}

std::string how_text(int32_t asked, size_t stages, size_t peers, double least_gain) {
  const char* s = stages == 1 ? "" : "s";
  if (asked > 0) return fmt::format("{} stage{} as asked", stages, s);
  std::string how = fmt::format("auto: {} stage{}", stages, s);
  if (stages < peers) {
    how += fmt::format(", more would not shorten the step by {:.0f} % each", 100 * least_gain);
  }
  return how;
}

}  // namespace

Result<PlanReport> plan_job(const opdag::Graph& graph, const job::JobSpec& spec,
                            const std::vector<PlannerPeer>& peers,
                            const std::vector<PlannerLink>& links, const PlannerOptions& options) {
  WEFT_TRY(PlanInputs in, make_inputs(graph, spec, most_promising(peers, options), links, options));
  if (in.peers.size() < peers.size()) {
    in.notes.push_back(fmt::format("only the {} fastest with room of {} peers were looked at",
                                   in.peers.size(), peers.size()));
  }
  WEFT_TRY_STATUS(check_asked(in.costs.cuts, spec.pipeline.stages, peers.size()));
  const GraphChain chain = chain_of(graph, in.costs, spec.train, in.peers);
  Searched searched;
  if (spec.pipeline.schedule == job::PipelineSchedule::kAuto && peers.size() > 1 && any_timed(in)) {
    PlanInputs split = in;
    split.compressor = Compressor(options.compression);  // each thread its own
    split.schedule.kind = job::PipelineSchedule::kZbH1;
    WEFT_TRY(searched, search_both(in, split, chain));
  } else {
    WEFT_TRY(searched.plain, find_candidates(in, chain));
  }
  Candidates& candidates = searched.plain;
  if (candidates.plans.empty()) return no_room(in, chain);
  Realised chosen = choose(candidates, options.least_gain);
  if (searched.split && chosen.timed) {
    try_zero_bubble(in, *searched.split, options.least_gain, candidates, chosen);
  }
  WEFT_TRY_STATUS(check_schedule(in, chosen));
  Explained facts;
  facts.how = how_text(spec.pipeline.stages, chosen.peers.size(), peers.size(), options.least_gain);
  facts.offered = peers.size();
  facts.single_peer = std::move(candidates.single_peer);
  facts.single_site = std::move(candidates.single_site);
  facts.sites = std::move(candidates.sites);
  return explain(in, chosen, facts);
}

Result<job::Plan> make_plan(const opdag::Graph& graph, const job::JobSpec& spec,
                            const std::vector<PlannerPeer>& peers,
                            const std::vector<PlannerLink>& links, const PlannerOptions& options) {
  WEFT_TRY(PlanReport report, plan_job(graph, spec, peers, links, options));
  return std::move(report.plan);
}

Result<PlanReport> evaluate_plan(const opdag::Graph& graph, const job::JobSpec& spec,
                                 const job::Plan& plan, const std::vector<PlannerPeer>& peers,
                                 const std::vector<PlannerLink>& links,
                                 const PlannerOptions& options) {
  WEFT_TRY(PlanInputs in, make_inputs(graph, spec, peers, links, options));
  WEFT_TRY(Realised realised, realise_plan(in, plan));
  const std::vector<int32_t> stage_peers = realised.peers;
  const int32_t over = stage_over_memory(in, realised, plan.gap);
  if (over >= 0) {
    in.notes.push_back(
        fmt::format("stage {} needs {}, its peer {} has {} to plan with", over,
                    mebibytes(stage_memories(in, realised, plan.gap)[static_cast<size_t>(over)]),
                    in.peers[static_cast<size_t>(stage_peers[static_cast<size_t>(over)])].id,
                    mebibytes(room_of(in, stage_peers[static_cast<size_t>(over)]))));
  }
  Explained facts;
  facts.how =
      fmt::format("evaluated: {} stage{}", stage_peers.size(), stage_peers.size() == 1 ? "" : "s");
  facts.offered = peers.size();
  const GraphChain chain = chain_of(graph, in.costs, spec.train, in.peers);
  Problem problem = problem_of(in, chain, 1);
  problem.stages = 0;
  Found found = search(problem);
  WEFT_TRY_STATUS(in.compressor.status());
  if (found.single_peer) {
    facts.single_peer = realise_layout(in, chain, found.single_peer->layout);
  }
  if (found.single_site) {
    facts.single_site = realise_layout(in, chain, found.single_site->layout);
  }
  facts.sites = std::move(found.sites);
  return explain(in, realised, facts);
}

}  // namespace weft::broker
