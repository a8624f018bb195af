#include "broker/planner/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "job/names.h"

namespace weft::broker {
namespace {

std::string seconds_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", 1e3 * seconds);
  return fmt::format("{:.3g} us", 1e6 * seconds);
}

const char* plural(size_t count) {
  return count == 1 ? "" : "s";
}

std::string peer_name(const PlanInputs& in, const Realised& chosen, int32_t stage) {
  return in.peers[static_cast<size_t>(chosen.peers[static_cast<size_t>(stage)])].id;
}

// The widest limit in words; shares where seconds mean nothing.
std::string bottleneck_text(const PlanInputs& in, const Realised& chosen,
                            const Bottleneck& bottleneck) {
  const auto& stages = chosen.pipeline.stages;
  std::vector<double> work;
  for (const job::StagePlan& stage : chosen.costs.stages) work.push_back(stage.flops);
  switch (bottleneck.kind) {
    case BottleneckKind::kCompute: {
      double total = 0;
      for (const PipelineStage& stage : stages) total += stage.work_s();
      const double share =
          total > 0 ? bottleneck.seconds / total : 1.0 / static_cast<double>(stages.size());
      const double codec_s = stages[static_cast<size_t>(bottleneck.stage)].codec_s();
      const std::string time =
          chosen.timed ? fmt::format(" ({} a micro-batch{})", seconds_text(bottleneck.seconds),
                                     codec_s > 0 ? ", codecs " + seconds_text(codec_s) : "")
                       : "";
      return fmt::format("stage {} with {:.0f} % of the {}{} (even would be {:.0f} %)",
                         bottleneck.stage, 100 * share, chosen.timed ? "computing" : "work", time,
                         100.0 / static_cast<double>(stages.size()));
    }
    case BottleneckKind::kLink:
      return fmt::format("the link from {} to {} ({} a micro-batch)",
                         peer_name(in, chosen, bottleneck.stage),
                         peer_name(in, chosen, bottleneck.other), seconds_text(bottleneck.seconds));
    case BottleneckKind::kLine:
      return fmt::format("{} ({} a micro-batch)",
                         in.network.line_name(static_cast<size_t>(bottleneck.line)),
                         seconds_text(bottleneck.seconds));
    case BottleneckKind::kLatency:
      return fmt::format("the round trip between {} and {} ({} a micro-batch at gap {})",
                         peer_name(in, chosen, bottleneck.stage),
                         peer_name(in, chosen, bottleneck.other), seconds_text(bottleneck.seconds),
                         chosen.gap);
  }
  return "?";
}

PlanAlternative alternative(const PlanInputs& in, const char* what, const Realised& realised) {
  PlanAlternative result{what, {}, realised.step_s, realised.pace_s};
  for (const int32_t peer : realised.peers) {
    result.peers.push_back(in.peers[static_cast<size_t>(peer)].id);
  }
  return result;
}

std::string against(const PlanAlternative& other, const PlanReport& report, double pace_s) {
  const size_t stages = report.plan.stages.size();
  const bool same = other.peers.size() == stages &&
                    std::equal(other.peers.begin(), other.peers.end(), report.plan.stages.begin(),
                               [](const std::string& id, const job::StagePlan& stage) {
                                 return stage.replicas[0] == id;
                               });
  if (same) return fmt::format("it is the {}", other.what);
  const double margin = pace_s > 0 ? other.pace_s / pace_s : 1;
  return fmt::format("the {} ({}{}) takes {:.2f} times as long", other.what,
                     fmt::join(other.peers.begin(),
                               other.peers.begin() + static_cast<std::ptrdiff_t>(
                                                         std::min<size_t>(other.peers.size(), 4)),
                               ", "),
                     other.peers.size() > 4 ? ", ..." : "", margin);
}

// Why a peer got no stage. needs: bytes of each stage.
std::string why_left_out(const PlanInputs& in, const std::vector<double>& needs, int32_t peer) {
  const auto least = std::min_element(needs.begin(), needs.end());
  const PlannerPeer& of = in.peers[static_cast<size_t>(peer)];
  if (room_of(in, peer) < *least && room_if_free(in, peer) >= *least) {
    return fmt::format("others use its memory: {} of {} are free, the least stage ({}) needs {}",
                       mebibytes(static_cast<double>(of.free_memory_bytes)),
                       mebibytes(static_cast<double>(of.memory_bytes)), least - needs.begin(),
                       mebibytes(*least));
  }
  if (room_of(in, peer) < *least) {
    return fmt::format("too small: {} of memory to plan with, the least stage ({}) needs {}",
                       mebibytes(room_of(in, peer)), least - needs.begin(), mebibytes(*least));
  }
  if (in.network.measured() && !in.network.known(static_cast<size_t>(peer))) {
    return "none of its links was measured";
  }
  return "the step would not get shorter with it";
}

void add_left_out(const PlanInputs& in, const Realised& chosen, PlanReport& report) {
  std::vector<bool> used(in.peers.size(), false);
  for (const int32_t peer : chosen.peers) used[static_cast<size_t>(peer)] = true;
  const std::vector<double> needs = stage_memories(in, chosen, chosen.gap);
  for (size_t peer = 0; peer < used.size(); ++peer) {
    if (used[peer]) continue;
    report.left_out.push_back(
        {in.peers[peer].id, why_left_out(in, needs, static_cast<int32_t>(peer))});
  }
}

// Peers by what kept them out; with its numbers where that is one peer.
std::string left_out_text(const PlanReport& report) {
  struct Reason {
    std::string kind, whole;
    std::vector<std::string> peers;
  };
  std::vector<Reason> reasons;
  for (const PlanLeftOut& left : report.left_out) {
    const std::string kind = left.why.substr(0, left.why.find(':'));
    auto known = std::find_if(reasons.begin(), reasons.end(),
                              [&](const Reason& reason) { return reason.kind == kind; });
    if (known == reasons.end()) known = reasons.insert(known, Reason{kind, left.why, {}});
    known->peers.push_back(left.peer);
  }
  std::string text;
  for (const Reason& reason : reasons) {
    const size_t named = std::min<size_t>(reason.peers.size(), 3);
    text += fmt::format(
        "{}{}{}: {}", text.empty() ? " (" : "; ",
        fmt::join(reason.peers.begin(), reason.peers.begin() + static_cast<std::ptrdiff_t>(named),
                  ", "),
        reason.peers.size() > named ? fmt::format(" and {} more", reason.peers.size() - named) : "",
        reason.peers.size() == 1 ? reason.whole : reason.kind);
  }
  return text.empty() ? text : text + ")";
}

// "; stage 0 recomputes: 12 MiB instead of 40 MiB", or nothing.
std::string recompute_text(const PlanInputs& in, const Realised& chosen) {
  const std::vector<double> with = stage_memories(in, chosen, chosen.gap);
  Realised keeping = chosen;
  for (PipelineStage& stage : keeping.pipeline.stages) stage.recompute = false;
  const std::vector<double> without = stage_memories(in, keeping, chosen.gap);
  constexpr size_t kNamed = 4;
  std::string text;
  size_t count = 0;
  for (size_t s = 0; s < with.size(); ++s) {
    if (!chosen.pipeline.stages[s].recompute || ++count > kNamed) continue;
    text += fmt::format("{}stage {} recomputes: {} instead of {}", count == 1 ? "; " : ", ", s,
                        mebibytes(with[s]), mebibytes(without[s]));
  }
  if (count > kNamed) text += fmt::format(", and {} more", count - kNamed);
  return text;
}

// "; 2 of 6 ways are compressed (assumed): 1.2 MiB a micro-batch instead of 12.0 MiB", or nothing.
std::string compression_text(const PlanInputs& in, const Prediction& prediction) {
  size_t compressed = 0;
  double bytes = 0, wire_bytes = 0;
  for (const WayPrediction& way : prediction.ways) {
    bytes += way.bytes;
    wire_bytes += way.wire_bytes;
    if (!way.codecs.empty()) ++compressed;
  }
  if (compressed == 0) return {};
  constexpr double kMebibyte = 1 << 20;
  return fmt::format(
      "; {} of {} ways {} compressed ({}): {:.3g} MiB a micro-batch instead of "
      "{:.3g} MiB",
      compressed, prediction.ways.size(), compressed == 1 ? "is" : "are",
      in.options.compression.name, wire_bytes / kMebibyte, bytes / kMebibyte);
}

// Of checkpoints that come faster than they are stored; or nothing.
void note_storing(const PlanInputs& in, const Realised& chosen, PlanReport& report) {
  if (!chosen.timed || !(chosen.pace_s > chosen.step_s)) return;
  int32_t slowest = 0;
  for (int32_t stage = 0; stage < static_cast<int32_t>(chosen.peers.size()); ++stage) {
    if (storing_seconds(in, chosen, static_cast<size_t>(stage)) == chosen.pace_s) slowest = stage;
  }
  const auto every = static_cast<double>(in.spec.train.checkpoint_every);
  report.notes.push_back(fmt::format(
      "{:.0f} steps take {}, but storing the checkpoint of stage {}, {} from {}, about {}: steps "
      "will wait for it, unless train.checkpoint.every is {:.0f} at least",
      every, seconds_text(every * chosen.step_s), slowest,
      mebibytes(chosen.costs.shard_bytes[static_cast<size_t>(slowest)]),
      peer_name(in, chosen, slowest), seconds_text(every * chosen.pace_s),
      std::ceil(every * chosen.pace_s / chosen.step_s)));
}

}  // namespace

std::string mebibytes(double bytes) {
  return fmt::format("{:.0f} MiB", std::ceil(bytes / (1 << 20)));
}

PlanReport explain(const PlanInputs& in, const Realised& chosen, const Explained& facts) {
  PlanReport report;
  job::ScheduleOptions schedule = in.schedule;
  schedule.gap = chosen.gap;
  report.prediction = predict(chosen.pipeline, in.network, schedule);
  for (size_t s = 0; s < chosen.peers.size(); ++s) {
    report.prediction.stages[s].memory_bytes +=
        in.peers[static_cast<size_t>(chosen.peers[s])].library_bytes();
  }
  report.notes = in.notes;
  note_storing(in, chosen, report);
  report.timed = chosen.timed;
  report.micro_batches = schedule.micro_batches;
  report.compression = in.options.compression.name;
  job::Plan& plan = report.plan;
  plan.partition = chosen.partition;
  plan.stages = chosen.costs.stages;
  plan.schedule = schedule.kind;
  plan.gap = chosen.gap;
  const size_t stages = plan.stages.size();
  for (size_t s = 0; s < stages; ++s) {
    plan.stages[s].replicas = {peer_name(in, chosen, static_cast<int32_t>(s))};
    const auto peer = static_cast<size_t>(chosen.peers[s]);
    if (in.speed_known[peer]) {
      const PipelineStage& stage = chosen.pipeline.stages[s];
      plan.stages[s].compute_s = in.schedule.micro_batches * stage.work_s();
      const bool profiled = in.peers[peer].gflops <= 0;
      plan.stages[s].correction = profiled ? in.peers[peer].correction : 0;
    }
    plan.stages[s].memory_bytes =
        static_cast<int64_t>(std::ceil(report.prediction.stages[s].memory_bytes));
    plan.stages[s].send_s = schedule.micro_batches * report.prediction.stages[s].send_s;
    plan.stages[s].receive_s = schedule.micro_batches * report.prediction.stages[s].receive_s;
    plan.stages[s].in_flight = report.prediction.stages[s].in_flight;
    plan.stages[s].recompute = chosen.pipeline.stages[s].recompute;
  }
  report.pace_s = chosen.pace_s;
  report.bottleneck = bottleneck_text(in, chosen, report.prediction.bottleneck);
  if (facts.single_peer) {
    report.alternatives.push_back(alternative(in, "best single peer", *facts.single_peer));
  }
  if (facts.single_site && facts.sites.size() > 1) {
    report.alternatives.push_back(alternative(in, "best single site", *facts.single_site));
  }
  for (const auto& site : facts.sites) {
    report.sites.emplace_back();
    for (const int32_t peer : site) {
      report.sites.back().push_back(in.peers[static_cast<size_t>(peer)].id);
    }
  }
  add_left_out(in, chosen, report);
  const size_t spares = facts.offered - stages;
  plan.reason = fmt::format(
      "{} over {} idle peer{}: bottleneck is {}; {} micro-batch{} a step, {}, "
      "gap {}{}",
      facts.how, facts.offered, plural(facts.offered), report.bottleneck, schedule.micro_batches,
      schedule.micro_batches == 1 ? "" : "es", job::name_of(schedule.kind), chosen.gap,
      chosen.gap_reason);
  if (chosen.timed) {
    plan.step_s = report.prediction.step_s;
    plan.reason += fmt::format("; {} a step predicted", seconds_text(report.prediction.step_s));
  }
  plan.reason += recompute_text(in, chosen);
  plan.reason += compression_text(in, report.prediction);
  for (const PlanAlternative& other : report.alternatives) {
    plan.reason += "; " + against(other, report, chosen.pace_s);
  }
  plan.reason += fmt::format("; {} spare{}{}", spares, plural(spares), left_out_text(report));
  for (const std::string& note : report.notes) plan.reason += "; " + note;
  return report;
}

}  // namespace weft::broker
