#include "executor/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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
constexpr double kLeastShare = 0.2;  // of a case is its operators' time, whatever a pass takes
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

}  // namespace

Result<std::vector<MeasuredCase>> run_cases(job::Precision precision, const MeasureOptions& options,
                                            double seconds) {
  struct Progress {
    bool over = false;
    double took = 0;  // by the level before
  };
  const std::vector<CaseFamily> families = measure_families();
  std::vector<Progress> progress(families.size());
  std::vector<bool> done(families.size(), false);  // its least cases
  std::vector<MeasuredCase> cases;
  // Without what loading kernels took, within bounds: attention on a card takes a second to load
  // for each new shape, microseconds to run.
  double loaded = 0;
  const auto now = [&] { return budget_now(options) - std::min(loaded, seconds); };
  // until: a level that would take longer is not begun; patience: of its warm-up.
  const auto run_level = [&](size_t i, int level, double until, double patience) -> Status {
    // A level is about four times as much as the one before.
    progress[i].over = level >= families[i].levels || now() + 2 * progress[i].took > until;
    if (progress[i].over) return {};
    WEFT_TRY(const opdag::Graph graph, families[i].make(level));
    progress[i].over = true;
    // Three times: values, their gradients, and what the backward keeps.
    if (3 * tensor_bytes(graph) > options.max_case_bytes) return {};
    const std::string name = fmt::format("{} {}", families[i].name, level);
    const double before = budget_now(options);
    auto measured = run_case(name, graph, families[i].op_class, precision, options, patience);
    if (!measured.ok()) {
      // One operator that a device cannot run says nothing about the others.
      if (measured.error().code != Code::kCancelled) {
        log_warning("not measured: {}", measured.error().text());
      }
      return {};
    }
    const MeasuredCase& one = cases.emplace_back(std::move(measured).value());
    progress[i] = {false, budget_now(options) - before - one.loading_s};
    loaded += one.loading_s;
    return {};
  };
  const double end = now() + seconds, last = end + seconds;
  const double latest = end + kLatest * seconds;
  // First what fits need at least, of every family, and be it later than the end: a class that is
  // slow here, as convolution in bf16 on a processor that emulates it, takes no other's time. The
  // first family of a class may take longer than others, since nothing else tells of the class;
  // and those of the classes without which there is no profile go before all others.
  const auto first_of_class = [&](size_t i) {
    return std::none_of(
        families.begin(), families.begin() + static_cast<std::ptrdiff_t>(i),
        [&](const CaseFamily& one) { return one.op_class == families[i].op_class; });
  };
  const auto least = [&](size_t i, int level) -> Status {
    if (progress[i].over) return {};
    const double left = latest - now(), usual = last - now();
    return first_of_class(i)
               ? run_level(i, level, latest, left / static_cast<double>(job::kOpClasses))
               : run_level(i, level, last, usual / 4);
  };
  for (const job::OpClass needed : {job::OpClass::kMatrix, job::OpClass::kElementwise}) {
    const auto found = std::find_if(families.begin(), families.end(),
                                    [&](const CaseFamily& one) { return one.op_class == needed; });
    const auto i = static_cast<size_t>(found - families.begin());
    for (int level = 0; level < kLeastCases; ++level) WEFT_TRY_STATUS(least(i, level));
    done[i] = true;
  }
  for (int level = 0; level < kLeastCases; ++level) {
    for (size_t i = 0; i < families.size(); ++i) {
      if (!done[i]) WEFT_TRY_STATUS(least(i, level));
    }
  }
  for (size_t i = 0; i < families.size(); ++i) {
    const double begin = now();
    const double family_end = begin + (end - begin) / static_cast<double>(families.size() - i);
    for (int level = kLeastCases; !progress[i].over; ++level) {
      const double left = family_end - now();
      const int steps = std::clamp(families[i].levels - level, 1, 4);
      WEFT_TRY_STATUS(run_level(i, level, family_end, left / steps));
    }
  }
  return cases;
}

Result<PassOverhead> pass_overhead(job::Precision precision, const MeasureOptions& options) {
  std::array<MeasuredCase, 2> chains;
  if (options.device == "cpu") return PassOverhead{};
  for (size_t i = 0; i < 2; ++i) {
    WEFT_TRY(const opdag::Graph graph, empty_chain(i == 0 ? kShortChain : kLongChain));
    WEFT_TRY(chains[i], run_case("an empty chain", graph, job::OpClass::kElementwise, precision,
                                 options, options.seconds / 4));
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
  const auto without = [](const MeasuredCase& one, double seconds, double beside) {
    return one.captured ? std::max(seconds - beside, kLeastShare * seconds) : seconds;
  };
  std::map<job::OpClass, std::vector<const MeasuredCase*>> by_class;
  for (const MeasuredCase& one : cases) by_class[one.op_class].push_back(&one);
  job::MeasuredCosts result;
  for (const auto& [op_class, members] : by_class) {
    if (members.size() < static_cast<size_t>(kLeastCases)) continue;  // anything would fit them
    std::vector<job::CostSample> forward, backward;
    for (const MeasuredCase* one : members) {
      const job::ClassWork total = one->work.total();
      forward.push_back({total.operators, total.flops_forward, total.bytes_forward,
                         without(*one, one->forward_s, overhead.forward_s)});
      backward.push_back({total.operators, total.flops_backward, total.bytes_backward,
                          without(*one, one->backward_s, overhead.backward_s)});
    }
    const auto at = static_cast<size_t>(op_class);
    const auto kind = job::is_product(op_class) ? job::CostKind::kProducts : job::CostKind::kAny;
    const job::CostFit ahead = job::fit_costs(forward, kind), back = job::fit_costs(backward, kind);
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
    if (!device.is_cpu()) {
      options.max_case_bytes =
          std::max(options.max_case_bytes,
                   std::min(profile.memory_free_bytes / kPartOfFree, kMostCaseBytes));
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
