// bench-profile: predicted and measured seconds of a model's stages on this machine.
// bench/peer_profile starts it. Prints one line of JSON: per stage its work by class, what the
// profile predicts for a micro-batch forward and backward, and the median of what a step's actions
// took.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/clock.h"
#include "base/os/file.h"
#include "base/os/own_process.h"
#include "base/rng.h"
#include "base/statistics.h"
#include "executor/check_inputs.h"
#include "executor/local_cluster.h"
#include "executor/measure_run.h"
#include "executor/worker.h"
#include "job/device_profile.h"
#include "job/json_read.h"
#include "opdag/derive.h"
#include "opdag/import.h"

namespace weft::executor {
namespace {

struct Options {
  std::string model, profile, device = "cpu";
  job::Precision precision = job::Precision::kFp32;
  int32_t stages = 1, threads = 1;
  int64_t steps = 12, warmup = 5;
};

Result<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--model") {
      options.model = value;
    } else if (name == "--profile") {
      options.profile = value;
    } else if (name == "--device") {
      options.device = value;
    } else if (name == "--precision" && (value == "fp32" || value == "bf16")) {
      options.precision = value == "bf16" ? job::Precision::kBf16 : job::Precision::kFp32;
    } else if (name == "--stages") {
      options.stages = std::atoi(value.c_str());
    } else if (name == "--threads") {
      options.threads = std::atoi(value.c_str());
    } else if (name == "--steps") {
      options.steps = std::atoll(value.c_str());
    } else {
      return make_error(Code::kInvalid, fmt::format("unknown option {} {}", name, value));
    }
  }
  if (options.model.empty() || options.profile.empty() || options.steps < 1 || options.stages < 1) {
    return make_error(Code::kInvalid,
                      "--model and --profile are needed, --steps and --stages from 1");
  }
  if (options.device != "cpu" && options.stages > 1) {
    return make_error(Code::kInvalid, "on a card --stages is 1: stages would wait for one another");
  }
  return options;
}

struct Measured {
  std::vector<double> seconds;  // of each stage's actions
  double told_s = 0;            // what workers would tell the broker of all stages; 0: nothing
};

// Of a step without the optimizer, medians of the steps. One stage on one thread of a CPU is timed
// in seconds of the processor.
Result<Measured> measure(const opdag::Graph& graph, const opdag::Partition& partition,
                         const WeightSource& weights, const Options& options) {
  WEFT_TRY(auto inputs, random_inputs(graph, 1));
  FixedFeed feed(std::move(inputs));
  ClusterOptions cluster_options;
  RuntimeOptions& runtime = cluster_options.runtime;
  runtime.plan = local_plan(partition, job::PipelineSchedule::k1F1B);
  runtime.train.precision = options.precision;
  runtime.device = options.device;
  runtime.keep_gradients = true;
  const opdag::Graph none;
  WEFT_TRY(auto cluster, LocalCluster::make(graph, none, cluster_options, weights, feed));
  std::vector<std::vector<double>> seconds(static_cast<size_t>(partition.stages));
  std::vector<double> told;
  const at::Device device(options.device);
  const bool alone = device.is_cpu() && options.threads == 1;
  for (int64_t step = 0; step < options.warmup + options.steps; ++step) {
    const double start = alone ? os::thread_cpu_seconds() : monotonic_seconds();
    WEFT_TRY(const StepResult result, cluster->step(step));
    finish(device);
    const double took = (alone ? os::thread_cpu_seconds() : monotonic_seconds()) - start;
    if (step < options.warmup) continue;
    if (result.compute_s > 0) told.push_back(result.compute_s);
    if (partition.stages == 1 && (alone || !device.is_cpu())) {
      seconds[0].push_back(took);
      continue;
    }
    for (int32_t s = 0; s < partition.stages; ++s) {
      seconds[static_cast<size_t>(s)].push_back(cluster->busy_s(s));
    }
  }
  Measured medians;
  for (auto& all : seconds) medians.seconds.push_back(median(std::move(all)));
  if (!told.empty()) medians.told_s = median(std::move(told));
  return medians;
}

Status run(const Options& options) {
  WEFT_TRY_STATUS(configure_torch(options.threads));
  WEFT_TRY(const std::string text, os::read_file(options.profile, job::kMaxProfileBytes));
  WEFT_TRY(const nlohmann::json json, job::parse_json(text, options.profile));
  WEFT_TRY(const job::DeviceProfile profile, job::profile_from_json(json));
  WEFT_TRY(auto archive, opdag::Archive::open(options.model));
  WEFT_TRY(auto imported, opdag::import_graph(archive));
  WEFT_TRY(const auto graph, opdag::prune_to(imported, {}));
  const WeightSource weights = [archive](const opdag::WeightRef& ref) {
    return archive.entry(ref.path);
  };
  opdag::Partition partition;
  partition.stage_of.assign(graph.nodes.size(), 0);
  Rng rng(1);
  if (options.stages > 1) {
    WEFT_TRY(partition, opdag::random_partition(graph, options.stages, rng));
  }
  WEFT_TRY(const auto measured, measure(graph, partition, weights, options));
  std::vector<job::Work> work(measured.seconds.size());
  const std::vector<job::Work> nodes = job::node_work(graph);
  for (size_t i = 0; i < nodes.size(); ++i) {
    work[static_cast<size_t>(partition.stage_of[i])].add(nodes[i]);
  }
  nlohmann::json stages = nlohmann::json::array();
  for (size_t s = 0; s < work.size(); ++s) {
    const job::PassSeconds predicted = job::seconds_of(work[s], profile, options.precision);
    nlohmann::json classes = nlohmann::json::object();
    for (size_t c = 0; c < job::kOpClasses; ++c) {
      job::Work alone;
      alone.of_class[c] = work[s].of_class[c];
      const job::PassSeconds part = job::seconds_of(alone, profile, options.precision);
      if (alone.of_class[c].operators == 0) continue;
      classes[std::string(job::op_class_name(static_cast<job::OpClass>(c)))] = {
          {"forward_s", part.forward}, {"backward_s", part.backward}};
    }
    const job::ClassWork total = work[s].total();
    stages.push_back({{"flops", total.flops_forward + total.flops_backward},
                      {"forward_s", predicted.forward},
                      {"backward_s", predicted.backward},
                      {"measured_s", measured.seconds[s]},
                      {"classes", std::move(classes)}});
  }
  fmt::print("{}\n",
             nlohmann::json{{"stages", std::move(stages)}, {"told_s", measured.told_s}}.dump());
  return {};
}

int bench(int argc, char** argv) {
  const auto options = parse(argc, argv);
  const Status done = options ? run(*options) : Status(options.error());
  if (done.ok()) return 0;
  fmt::print(stderr, "bench-profile: {}\n", done.error().text());
  return 1;
}

}  // namespace
}  // namespace weft::executor

int main(int argc, char** argv) {
  return weft::executor::bench(argc, argv);
}
