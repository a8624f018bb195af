#include "executor/worker_loop.h"

#include <fmt/format.h>

#include <filesystem>
#include <limits>

#include "base/clock.h"
#include "base/log.h"
#include "executor/checkpoint.h"
#include "executor/device_memory.h"
#include "executor/worker_goodbye.h"
#include "job/checkpoint.h"

namespace weft::executor {

Boundary boundary_at(const job::TrainSpec& train, int64_t done, bool evaluates) {
  const bool last = done >= train.steps;
  const auto due = [&](int64_t every) { return last || (every > 0 && done % every == 0); };
  return {evaluates && due(train.eval_every), due(train.checkpoint_every)};
}

TrainingLoop::TrainingLoop(LoopOptions options, StageRuntime& runtime, net::Endpoint& endpoint,
                           WorkerControl& control, EventSink events)
    : options_(std::move(options)),
      runtime_(runtime),
      endpoint_(endpoint),
      control_(control),
      events_(std::move(events)),
      done_(options_.spec.resume.step) {}

Status TrainingLoop::drive() {
  // A copy between card and host takes microseconds to milliseconds: looked for at once, then at
  // every arrival and each millisecond.
  constexpr int kLooks = 200;
  constexpr int32_t kCopyWaitMs = 1;
  for (int looks = 0;;) {
    if (control_.stopped()) return control_.stop_error();
    WEFT_TRY(const Progress progress, runtime_.advance());
    control_.moved();
    if (progress == Progress::kDone) return {};
    const bool copying = progress == Progress::kCopying;
    if (!copying) looks = 0;
    if (progress == Progress::kRan || (copying && ++looks < kLooks)) continue;
    if (auto waited = endpoint_.wait(copying ? kCopyWaitMs : options_.wait_ms); !waited) {
      const Code code = waited.error().code;
      if (code == Code::kCancelled && control_.stopped()) return control_.stop_error();
      // A silent link is the endpoint's to judge; a slow neighbour is no failure.
      if (code != Code::kTimeout && code != Code::kCancelled) return std::move(waited).error();
    }
    control_.moved();
  }
}

void TrainingLoop::report_step(double seconds) {
  const StepResult result = runtime_.result();
  job::WorkerEvent event;
  event.kind = job::WorkerEventKind::kStep;
  event.step = done_;
  event.loss = options_.loss_stage ? result.loss : std::numeric_limits<double>::quiet_NaN();
  event.grad_norm = result.grad_norm;
  event.loss_scale = result.loss_scale;
  event.skipped_steps = result.skipped_steps;
  if (result.skipped) {
    log_info("step {} is skipped: gradients have inf or NaN at loss scale {:g} ({} skipped so far)",
             done_, result.loss_scale, result.skipped_steps);
  }
  event.seconds = seconds;
  event.compute_s = result.compute_s;
  event.samples = options_.spec.spec.train.batch;
  event.tokens = event.samples * options_.batch.sequence;
  event.peak_memory_bytes = peak_memory_bytes(options_.spec.device);
  const net::EndpointStats stats = endpoint_.stats();
  for (const auto& [edge, bytes] : stats.bytes_sent) {
    int64_t& before = sent_bytes_[edge];
    event.edge_bytes[static_cast<int32_t>(edge)] = bytes - before;
    before = bytes;
  }
  add_traffic(stats, event);
  events_(event);
}

void TrainingLoop::add_traffic(const net::EndpointStats& stats, job::WorkerEvent& event) {
  const double now = monotonic_seconds();
  if (now - told_s_ < kTellTrafficS) return;
  for (const auto& [stage, carried] : stats.carried) {
    int64_t& told = told_runs_[stage];
    if (carried.runs == told || carried.bytes_s <= 0) continue;
    told = carried.runs;
    event.traffic.push_back({stage, carried.bytes_s, carried.round_trip_s});
    told_s_ = now;
  }
}

Status TrainingLoop::train_step() {
  const double start = monotonic_seconds();
  WEFT_TRY_STATUS(runtime_.begin_step(done_));
  WEFT_TRY_STATUS(drive());
  ++done_;
  report_step(monotonic_seconds() - start);
  return {};
}

Status TrainingLoop::evaluate() {
  const double start = monotonic_seconds();
  // Evaluations happen at distinct counts of done steps: the count is their ordinal.
  WEFT_TRY_STATUS(runtime_.begin_eval(done_, options_.eval_micro_batches));
  WEFT_TRY_STATUS(drive());
  if (!options_.loss_stage) return {};
  const StepResult result = runtime_.result();
  job::WorkerEvent event;
  event.kind = job::WorkerEventKind::kEval;
  event.step = done_;
  event.loss = result.loss;
  event.accuracy = result.accuracy;
  event.seconds = monotonic_seconds() - start;
  event.samples = options_.eval_micro_batches * options_.batch.micro_batch;
  events_(event);
  return {};
}

// The daemon deletes a shard once it is stored off this machine. A slow uplink holds training back
// rather than fill the disk.
Status TrainingLoop::await_uploads() {
  bool said = false;
  for (;;) {
    std::erase_if(stored_, [](const os::Path& path) {
      std::error_code code;
      return !std::filesystem::exists(path, code) && !code;
    });
    if (stored_.size() < job::kMaxStoredShards) return {};
    if (!said) log_info("{} checkpoints are not uploaded yet: training waits", stored_.size());
    said = true;
    // Not a plain sleep: a daemon that uploads nothing any more must not hide a dead link.
    if (auto waited = endpoint_.wait(options_.poll_ms); !waited) {
      if (control_.stopped()) return control_.stop_error();
      const Code code = waited.error().code;
      if (code != Code::kTimeout && code != Code::kCancelled) return waited;
    }
    control_.moved();
  }
}

Status TrainingLoop::checkpoint() {
  const job::WorkerSpec& spec = options_.spec;
  WEFT_TRY_STATUS(await_uploads());
  const ShardInfo info{spec.job, spec.plan.epoch, spec.stage, done_};
  const os::Path path = os::Path(spec.work_dir) / shard_name(info);
  WEFT_TRY_STATUS(write_shard(path, runtime_.state(), info));
  control_.moved();
  stored_.push_back(path);
  shard_path_ = path.string();
  job::WorkerEvent event;
  event.kind = job::WorkerEventKind::kCheckpoint;
  event.step = done_;
  event.path = shard_path_;
  events_(event);
  return {};
}

Status TrainingLoop::at_boundary() {
  const Boundary boundary =
      boundary_at(options_.spec.spec.train, done_, options_.eval_micro_batches > 0);
  if (boundary.evaluate) WEFT_TRY_STATUS(evaluate());
  if (boundary.checkpoint) WEFT_TRY_STATUS(checkpoint());
  return hold(boundary.checkpoint);
}

// Where the broker asks every stage to wait: none computes what another plan would compute again.
// A link that breaks meanwhile is no failure: the shard may still reach the broker.
Status TrainingLoop::hold(bool stored) {
  constexpr double kLookSeconds = 1;
  if (done_ == 0 || done_ >= options_.spec.spec.train.steps || !control_.held(done_)) return {};
  log_info("waiting behind step {}", done_);
  if (!stored) WEFT_TRY_STATUS(checkpoint());
  while (control_.held(done_, kLookSeconds)) {
    if (control_.stopped()) return control_.stop_error();
  }
  return {};
}

Status TrainingLoop::run() {
  const int64_t steps = options_.spec.spec.train.steps;
  if (done_ >= steps) WEFT_TRY_STATUS(at_boundary());
  while (done_ < steps) {
    if (auto trained = train_step(); !trained) {
      return std::move(trained).error().within(fmt::format("step {}", done_));
    }
    if (auto ended = at_boundary(); !ended) {
      return std::move(ended).error().within(fmt::format("after step {}", done_));
    }
  }
  WEFT_TRY_STATUS(flush_patiently(endpoint_, control_));
  job::WorkerEvent event;
  event.kind = job::WorkerEventKind::kFinished;
  event.step = done_;
  event.path = shard_path_;
  event.peak_memory_bytes = peak_memory_bytes(options_.spec.device);
  events_(event);
  return {};
}

}  // namespace weft::executor
