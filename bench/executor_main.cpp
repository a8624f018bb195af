// bench-executor: training steps of a model as one stage of weft, timed. bench/executor starts it
// and compares with PyTorch. Prints one line of JSON.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/clock.h"
#include "base/os/own_process.h"
#include "executor/check_inputs.h"
#include "executor/device_memory.h"
#include "executor/local_cluster.h"
#include "executor/measure_run.h"
#include "opdag/derive.h"
#include "opdag/import.h"

namespace weft::executor {
namespace {

struct Options {
  std::string model, inputs, device = "cpu", precision = "fp32", gradients = "tape", capture = "on";
  int64_t steps = 20, warmup = 3;
};

Result<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--model") {
      options.model = value;
    } else if (name == "--inputs") {
      options.inputs = value;
    } else if (name == "--device") {
      options.device = value;
    } else if (name == "--precision" && (value == "fp32" || value == "bf16")) {
      options.precision = value;
    } else if (name == "--gradients" && (value == "tape" || value == "autograd")) {
      options.gradients = value;
    } else if (name == "--capture" && (value == "on" || value == "off")) {
      options.capture = value;
    } else if (name == "--steps") {
      options.steps = std::atoll(value.c_str());
    } else if (name == "--warmup") {
      options.warmup = std::atoll(value.c_str());
    } else {
      return make_error(Code::kInvalid, fmt::format("unknown option {} {}", name, value));
    }
  }
  if (argc % 2 == 0 || options.model.empty() || options.inputs.empty() || options.steps < 1) {
    return make_error(Code::kInvalid, "--model, --inputs and --steps of 1 or more are needed");
  }
  return options;
}

Status run(const Options& options) {
  os::keep_freed_memory();  // as the worker does
  use_expandable_segments();
  WEFT_TRY(auto archive, opdag::Archive::open(options.model));
  WEFT_TRY(auto imported, opdag::import_graph(archive));
  WEFT_TRY(const auto graph, opdag::prune_to(imported, {}));
  WEFT_TRY(auto inputs, inputs_from_file(graph, options.inputs));
  FixedFeed feed(std::move(inputs));
  opdag::Partition whole;
  whole.stage_of.assign(graph.nodes.size(), 0);
  ClusterOptions cluster_options;
  RuntimeOptions& runtime = cluster_options.runtime;
  runtime.plan = local_plan(whole, job::PipelineSchedule::k1F1B);
  runtime.train.steps = options.warmup + options.steps;
  runtime.train.lr = 3e-4;
  runtime.train.weight_decay = 0.01;
  runtime.train.precision =
      options.precision == "bf16" ? job::Precision::kBf16 : job::Precision::kFp32;
  runtime.device = options.device;
  if (options.gradients == "autograd") runtime.differentiation = Differentiation::kAutograd;
  runtime.capture = options.capture == "on";
  const WeightSource weights = [archive](const opdag::WeightRef& ref) {
    return archive.entry(ref.path);
  };
  WEFT_TRY(auto cluster, LocalCluster::make(graph, {}, cluster_options, weights, feed));
  nlohmann::json seconds = nlohmann::json::array(), host_seconds = nlohmann::json::array();
  double loss = 0;
  const at::Device device(options.device);
  for (int64_t step = 0; step < options.warmup + options.steps; ++step) {
    finish(device);
    const double start = monotonic_seconds();
    WEFT_TRY(const StepResult result, cluster->step(step));
    finish(device);
    if (step >= options.warmup) {
      seconds.push_back(monotonic_seconds() - start);
      host_seconds.push_back(result.busy_s);
    }
    loss = result.loss;
  }
  fmt::print("{}\n", nlohmann::json{{"seconds", seconds},
                                    {"host_seconds", host_seconds},
                                    {"loss", loss},
                                    {"peak_reserved_bytes", peak_memory_bytes(options.device)}}
                         .dump());
  return {};
}

int bench(int argc, char** argv) {
  const auto options = parse(argc, argv);
  const Status done = options ? run(*options) : Status(options.error());
  if (done.ok()) return 0;
  fmt::print(stderr, "bench-executor: {}\n", done.error().text());
  return 1;
}

}  // namespace
}  // namespace weft::executor

int main(int argc, char** argv) {
  const int code = weft::executor::bench(argc, argv);
  std::fflush(nullptr);
  std::_Exit(code);  // CUDA's static destructors may hang
}
