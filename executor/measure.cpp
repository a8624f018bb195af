#include "executor/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "base/clock.h"
#include "base/log.h"
#include "base/os/process.h"
#include "base/version.h"
#include "executor/convert.h"
#include "executor/device_memory.h"
#include "executor/measure_cases.h"
#include "executor/measure_run.h"
#include "executor/transfer.h"

namespace weft::executor {
namespace {

constexpr size_t kCopyBytes = size_t{64} << 20;
constexpr int kCopyRuns = 5;
constexpr int kLeastCases = 3;  // of a family, and of a class: as many as it has coefficients
constexpr int kShortChain = 4, kLongChain = 36;
constexpr double kLeastShare = 0.2;    // of a case is its operators' time, whatever a pass takes
constexpr double kLeastOfSeen = 0.75;  // a product costs of the least that it was seen to cost
constexpr uint64_t kCaseBytes = uint64_t{256} << 20;
constexpr uint64_t kPartOfFree = 16, kMostCaseBytes = uint64_t{4} << 30;  // on a card
constexpr double kLatest = 15;  // of the time given: a busy machine has all classes by then

uint64_t tensor_bytes(const opdag::Graph& graph) {
  uint64_t bytes = 0;
  for (const opdag::Value& value : graph.values) {
    bytes += static_cast<uint64_t>(opdag::meta_bytes(value.meta));
  }
  return bytes;
}

// GB/s between host memory and the device, in the way messages go; zero on a CPU.
void measure_copies(at::Device device, job::DeviceProfile& profile) {
  if (device.is_cpu()) return;
  const at::NoGradGuard guard;
  const auto transfer = Transfer::make(device);
  const at::Tensor host = transfer->host_bytes(kCopyBytes);
  std::vector<double> in, out;
  for (int run = 0; run < kCopyRuns; ++run) {
    finish(device);
    const double start = monotonic_seconds();
    const at::Tensor there = transfer->to_device(host);
    finish(device);
    const double middle = monotonic_seconds();
    transfer->copy_to_host(there, host);
    const auto mark = transfer->mark();
    finish(device);
    in.push_back(middle - start);
    out.push_back(monotonic_seconds() - middle);
  }
  profile.to_device_gbyte_s = 1e-9 * static_cast<double>(kCopyBytes) / typical(in);
  profile.from_device_gbyte_s = 1e-9 * static_cast<double>(kCopyBytes) / typical(out);
}

// The cases of one precision, in a time that leaves out what loading kernels took, within bounds:
// attention on a card takes a second to load for each new shape, microseconds to run.
class Round {
 public:
  Round(job::Precision precision, const MeasureOptions& options, double seconds)
      : precision_(precision), options_(options), seconds_(seconds), end_(now() + seconds) {}

  // What fits need at least, of every family, and be it later than the end: a class that is slow
  // here, as convolution in bf16 on a processor that emulates it, takes no other's time. The
  // classes without which there is no profile go before all others.
  Status run_least() {
    std::vector<bool> done(families_.size(), false);
    for (const job::OpClass needed : {job::OpClass::kMatrix, job::OpClass::kElementwise}) {
      const auto found = std::find_if(families_.begin(), families_.end(),
                                      [&](const auto& one) { return one.op_class == needed; });
      const auto i = static_cast<size_t>(found - families_.begin());
      for (int level = 0; level < kLeastCases; ++level) WEFT_TRY_STATUS(run_least(i, level));
      done[i] = true;
    }
    for (int level = 0; level < kLeastCases; ++level) {
      for (size_t i = 0; i < families_.size(); ++i) {
        if (!done[i]) WEFT_TRY_STATUS(run_least(i, level));
      }
    }
    return {};
  }

  // Larger ones, each family up to the size that its share of the time allows.
  Status run_larger() {
    for (size_t i = 0; i < families_.size(); ++i) {
      const double begin = now();
      const double until = begin + (end_ - begin) / static_cast<double>(families_.size() - i);
      for (int level = kLeastCases; !progress_[i].over; ++level) {
        const int steps = std::clamp(families_[i].levels - level, 1, 4);
        WEFT_TRY_STATUS(run_level(i, level, until, (until - now()) / steps));
      }
    }
    return {};
  }

  std::vector<MeasuredCase> take_cases() { return std::move(cases_); }

 private:
  struct Progress {
    bool over = false;
    double took = 0;  // by the level before
  };

  double now() const { return budget_now(options_) - std::min(loaded_, seconds_); }

  // The first family of a class may take longer than others, since nothing else tells of the class.
  Status run_least(size_t i, int level) {
    if (progress_[i].over) return {};
    const bool first =
        std::none_of(families_.begin(), families_.begin() + static_cast<std::ptrdiff_t>(i),
                     [&](const CaseFamily& one) { return one.op_class == families_[i].op_class; });
    const double last = end_ + seconds_, latest = end_ + kLatest * seconds_;
    return first ? run_level(i, level, latest, (latest - now()) / job::kOpClasses)
                 : run_level(i, level, last, (last - now()) / 4);
  }

  // until: a level that would take longer is not begun; patience: of its warm-up.
  Status run_level(size_t i, int level, double until, double patience) {
    // A level is about four times as much as the one before.
    Progress& progress = progress_[i];
    progress.over = level >= families_[i].levels || now() + 2 * progress.took > until;
    if (progress.over) return {};
    WEFT_TRY(const opdag::Graph graph, families_[i].make(level));
    progress.over = true;
    // Three times: values, their gradients, and what the backward keeps.
    if (3 * tensor_bytes(graph) > options_.max_case_bytes.value_or(kCaseBytes)) return {};
    const std::string name = fmt::format("{} {}", families_[i].name, level);
    const double before = budget_now(options_);
    double loading = 0;
    auto measured =
        run_case(name, graph, families_[i].op_class, precision_, options_, patience, loading);
    loaded_ += loading;
    if (!measured.ok()) {
      // One operator that a device cannot run says nothing about the others.
      if (measured.error().code != Code::kCancelled) {
        log_warning("not measured: {}", measured.error().text());
      }
      return {};
    }
    cases_.push_back(std::move(measured).value());
    progress = {false, budget_now(options_) - before - loading};
    return {};
  }

  const job::Precision precision_;
  const MeasureOptions& options_;
  const double seconds_;
  const std::vector<CaseFamily> families_ = measure_families();
  std::vector<Progress> progress_{families_.size()};
  std::vector<MeasuredCase> cases_;
  double loaded_ = 0;
  const double end_;
};

// Of one direction of a class. Few samples are so large that FLOPs decide them on a fast card, or
// none beside another process: a fit alone would promise large products for next to nothing. So one
// costs a part of the least it was seen to cost a FLOP, whatever a pass takes beside its operators.
job::CostFit fit_direction(const std::vector<const MeasuredCase*>& cases, double beside,
                           bool backward) {
  std::vector<job::CostSample> samples;
  double least_flop_s = std::numeric_limits<double>::infinity();
  for (const MeasuredCase* one : cases) {
    const job::ClassWork work = one->work.total();
    const double flops = backward ? work.flops_backward : work.flops_forward;
    const double seconds = backward ? one->backward_s : one->forward_s;
    samples.push_back(
        {work.operators, flops, backward ? work.bytes_backward : work.bytes_forward,
         one->captured ? std::max(seconds - beside, kLeastShare * seconds) : seconds});
    if (flops > 0) least_flop_s = std::min(least_flop_s, kLeastOfSeen * seconds / flops);
  }
  const bool bound = job::is_product(cases.front()->op_class) && std::isfinite(least_flop_s);
  return job::fit_costs(samples, bound ? least_flop_s : 0);
}

}  // namespace

Result<std::vector<MeasuredCase>> run_cases(job::Precision precision, const MeasureOptions& options,
                                            double seconds) {
  Round round(precision, options, seconds);
  WEFT_TRY_STATUS(round.run_least());
  WEFT_TRY_STATUS(round.run_larger());
  return round.take_cases();
}

Result<PassOverhead> pass_overhead(job::Precision precision, const MeasureOptions& options) {
  std::array<MeasuredCase, 2> chains;
  double loading = 0;
  if (options.device == "cpu") return PassOverhead{};
  for (size_t i = 0; i < 2; ++i) {
    WEFT_TRY(const opdag::Graph graph, empty_chain(i == 0 ? kShortChain : kLongChain));
    WEFT_TRY(chains[i], run_case("an empty chain", graph, job::OpClass::kElementwise, precision,
                                 options, options.seconds / 4, loading));
  }
  if (!chains[0].captured || !chains[1].captured) return PassOverhead{};
  const auto beside = [](double few, double many) {
    const double each = std::max(many - few, 0.0) / (kLongChain - kShortChain);
    return std::max(few - kShortChain * each, 0.0);
  };
  return PassOverhead{beside(chains[0].forward_s, chains[1].forward_s),
                      beside(chains[0].backward_s, chains[1].backward_s)};
}

job::MeasuredCosts fit_cases(const std::vector<MeasuredCase>& cases, const PassOverhead& overhead) {
  std::map<job::OpClass, std::vector<const MeasuredCase*>> by_class;
  for (const MeasuredCase& one : cases) by_class[one.op_class].push_back(&one);
  job::MeasuredCosts result;
  for (const auto& [op_class, members] : by_class) {
    if (members.size() < static_cast<size_t>(kLeastCases)) continue;  // anything would fit them
    const auto at = static_cast<size_t>(op_class);
    const job::CostFit ahead = fit_direction(members, overhead.forward_s, false);
    const job::CostFit back = fit_direction(members, overhead.backward_s, true);
    result.costs[at] = {ahead.cost, back.cost};
    result.errors[at] = {ahead.error, back.error, static_cast<int32_t>(members.size())};
  }
  return result;
}

Result<job::DeviceProfile> measure_device(const MeasureOptions& given) {
  MeasureOptions options = given;
  const double start = budget_now(options);
  try {
    WEFT_TRY(const at::Device device, parse_device(options.device));
    job::DeviceProfile profile;
    profile.device = options.device;
    profile.version = kVersion;
    profile.threads = options.threads;
    WEFT_TRY(profile.memory_total_bytes, total_memory_bytes(options.device));
    WEFT_TRY(profile.memory_free_bytes, free_memory_bytes(options.device));
    if (!device.is_cpu() && !options.max_case_bytes) {
      options.max_case_bytes =
          std::clamp(profile.memory_free_bytes / kPartOfFree, kCaseBytes, kMostCaseBytes);
    }
    measure_copies(device, profile);
    PassOverhead overhead;
    if (auto found = pass_overhead(job::Precision::kFp32, options); found.ok()) {
      overhead = *found;
    } else {
      log_warning("what a pass takes beside its operators counts as theirs: {}",
                  found.error().text());
    }
    // What a card takes to wake up is not its operators' time to be measured.
    const double begin = budget_now(options), half = options.seconds / 2;
    WEFT_TRY(const auto single, run_cases(job::Precision::kFp32, options, half));
    profile.fp32 = fit_cases(single, overhead);
    const double left = options.seconds - (budget_now(options) - begin);
    WEFT_TRY(const auto mixed, run_cases(job::Precision::kBf16, options, std::max(left, half)));
    profile.bf16 = fit_cases(mixed, overhead);
    profile.seconds = budget_now(options) - start;
    return profile;
  } catch (const std::exception& error) {
    return make_error(Code::kInternal,
                      fmt::format("measuring {}: {}", options.device, exception_text(error)));
  }
}

}  // namespace weft::executor
