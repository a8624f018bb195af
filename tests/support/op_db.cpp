#include "tests/support/op_db.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.h"
#include "executor/check_inputs.h"
#include "executor/convert.h"
#include "job/safetensors.h"
#include "opdag/derive.h"
#include "opdag/import.h"
#include "opdag/op_table.h"
#include "tests/support/exported_models.h"

namespace weft::executor::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct OperatorCase {
  std::string name;
  std::set<std::string> overloads, before, after;
  bool random = false;
  bool narrow = false;
  std::string unavailable;  // why PyTorch itself cannot on this device
};

struct OperatorRun {
  double loss = 0;
  Tensors gradients;
};

struct OperatorModel {
  opdag::Graph graph;
  WeightSource weights;
};

OperatorModel import_case(const fs::path& folder, const OperatorCase& item) {
  auto archive = must(opdag::Archive::open(folder / (item.name + ".pt2")));
  OperatorModel model;
  model.graph = must(opdag::prune_to(must(opdag::import_graph(archive)), {}));
  model.weights = [archive](const opdag::WeightRef& ref) { return archive.entry(ref.path); };
  return model;
}

// Stage of each node: before the operator, the operator (and what rewriting in-place operators
// added), after it. Empty where that is no legal cut.
opdag::Partition cut_around(const opdag::Graph& graph, const OperatorCase& item) {
  opdag::Partition cut;
  std::set<int32_t> used;
  for (const opdag::Node& node : graph.nodes) {
    const opdag::ValueId first = node.outputs.empty() ? opdag::kNone : node.outputs[0];
    const std::string name = first == opdag::kNone ? "" : graph.value(first).name;
    cut.stage_of.push_back(item.before.contains(name) ? 0 : item.after.contains(name) ? 2 : 1);
    used.insert(cut.stage_of.back());
  }
  // An operator that reads nothing has no stage before it; one that rewriting dissolved, none own.
  for (int32_t& stage : cut.stage_of) {
    stage = static_cast<int32_t>(std::distance(used.begin(), used.find(stage)));
  }
  cut.stages = static_cast<int32_t>(used.size());
  if (!opdag::check_partition(graph, cut).ok()) return {};
  return cut;
}

Result<OperatorRun> compute(const OperatorModel& model, const opdag::Partition& cut,
                            const std::string& device) {
  FixedFeed feed({});
  ClusterOptions options;
  options.runtime.plan = local_plan(cut, k1F1B);
  options.runtime.train.precision = Precision::kFp64;
  options.runtime.device = device;
  options.runtime.keep_gradients = true;
  WEFT_TRY(auto cluster, LocalCluster::make(model.graph, {}, options, model.weights, feed));
  WEFT_TRY(const StepResult result, cluster->step(0));
  return OperatorRun{result.loss, cluster->gradients()};
}

// What differs from PyTorch, or "".
std::string faults(const OperatorRun& found, const Tensors& truth, double tolerance) {
  const double loss = truth.at("loss").item<double>();
  if (!(std::abs(found.loss - loss) <= tolerance * std::max(1.0, std::abs(loss)))) {
    return fmt::format("loss {:.17g}, PyTorch {:.17g}", found.loss, loss);
  }
  for (const auto& [name, tensor] : found.gradients) {
    const auto expected = truth.find("grad." + name);
    if (expected == truth.end()) {
      if (tensor.count_nonzero().item<int64_t>() != 0) return name + " has a gradient";
    } else if (const double gap = difference(expected->second, tensor); !(gap <= tolerance)) {
      return fmt::format("gradient of {}: relative difference {:.3g}", name, gap);
    }
  }
  for (const auto& [name, tensor] : part_of(truth, "grad.")) {
    if (!found.gradients.contains(name) && tensor.count_nonzero().item<int64_t>() != 0) {
      return name + " has no gradient";
    }
  }
  return "";
}

// tolerance 0: bit for bit.
std::string cut_faults(const OperatorRun& whole, const OperatorRun& parts, double tolerance) {
  const double gap = std::abs(parts.loss - whole.loss);
  if (parts.loss != whole.loss && !(gap <= tolerance * std::max(1.0, std::abs(whole.loss)))) {
    return "the cut changes the loss";
  }
  if (parts.gradients.size() != whole.gradients.size())
    return "the cut changes which gradients are";
  for (const auto& [name, tensor] : whole.gradients) {
    const at::Tensor& part = parts.gradients.at(name);
    if (!at::equal(tensor, part) && !(tolerance > 0 && difference(tensor, part) <= tolerance)) {
      return "the cut changes the gradient of " + name;
    }
  }
  return "";
}

using Cases = std::map<std::string, Tensors>;

class OperatorDatabase {
 public:
  explicit OperatorDatabase(const OperatorDatabaseOptions& options) : options_(options) {}

  void run() {
    const double start = monotonic_seconds();
    for (const std::string& folder : options_.folders) {
      folder_ = folder;
      std::ifstream stream(folder_ / "cases.json");
      const Json summary = Json::parse(stream);
      read_truths(must(job::read_safetensors(folder_ / "reference.safetensors")));
      for (const Json& json : summary.at("cases")) {
        if (monotonic_seconds() - start > options_.seconds) {
          ++late_;
        } else {
          run_one(json);
        }
      }
      note_missing(summary);
    }
  }

  // Each row is proven or has its reason.
  void report() {
    size_t proven = 0;
    std::string missing;
    for (const opdag::OpInfo& row : opdag::all_ops()) {
      const std::string name(row.name.substr(row.name.find("::") + 2));
      if (proven_.contains(name)) {
        ++proven;
        continue;
      }
      const auto reason = reasons_.find(name);
      missing += fmt::format("  {}: {}\n", name, reason == reasons_.end() ? "" : reason->second);
    }
    for (const std::string& name : unexplained_) {
      if (proven_.contains(name) || late_ > 0) continue;
      ADD_FAILURE() << name << " is in no case, and op_db_extra.py gives no reason";
    }
    std::string text = fmt::format(
        "torch {}, {}: {} overloads allowed, {} proven equal to PyTorch (tolerance {:g}, with "
        "float32 {:g}); {} cases, {} equal, {} different, {} that PyTorch itself cannot run there, "
        "{} not run for lack of time; {} cut before and after the operator, {} held in one piece "
        "by aliases of unproven kind; {} draw at random: cut against whole only. Proven by no "
        "case:\n{}",
        torch_, options_.device, opdag::all_ops().size(), proven, options_.tolerance,
        options_.narrow_tolerance, equal_ + different_ + unavailable_ + late_, equal_, different_,
        unavailable_, late_, cut_, uncut_, random_, missing);
    fmt::print("{}", text);
    if (const auto path = from_environment("WEFT_OP_DB_REPORT", ""); !path.empty()) {
      std::ofstream(path) << text;
    }
  }

 private:
  void read_truths(const job::Safetensors& file) {
    file_ = file;
    truths_.clear();
    for (const auto& [key, view] : file_.tensors) {
      const size_t at = key.find('/');
      truths_[key.substr(0, at)][key.substr(at + 1)] = must(tensor_of(view));
    }
  }

  void run_one(const Json& json) {
    // A case that ends the process is the last one named.
    static const bool aloud = !from_environment("WEFT_OP_DB_ALOUD", "").empty();
    OperatorCase item;
    item.name = json.at("name");
    item.overloads = json.at("overloads").get<std::set<std::string>>();
    item.before = json.at("before").get<std::set<std::string>>();
    item.after = json.at("after").get<std::set<std::string>>();
    item.random = json.at("random");
    item.narrow = json.value("narrow", false);
    if (const auto why = json.value("unavailable", ""); !why.empty()) {
      ++unavailable_;
      for (const std::string& name : item.overloads) reasons_[name] = "PyTorch there: " + why;
      return;
    }
    std::string fault;
    if (aloud) fmt::print(stderr, "{}\n", item.name);
    try {
      fault = run_case(item);
    } catch (const std::exception& error) {
      fault = error.what();
    }
    (fault.empty() ? equal_ : different_) += 1;
    if (fault.empty()) {
      proven_.insert(item.overloads.begin(), item.overloads.end());
    } else {
      ADD_FAILURE() << item.name << " " << json.at("overloads") << ": " << fault;
    }
  }

  // What no shard holds.
  void note_missing(const Json& summary) {
    torch_ = summary.at("torch");
    for (const auto& [name, reason] : summary.at("missing").items()) {
      if (!reason.get<std::string>().empty()) reasons_.try_emplace(name, reason);
    }
    const auto here = summary.at("unexplained").get<std::set<std::string>>();
    if (folder_ == options_.folders.front()) unexplained_ = here;
    std::erase_if(unexplained_, [&](const std::string& name) { return !here.contains(name); });
  }

  std::string run_case(const OperatorCase& item) {
    // PyTorch's in-place elu, celu and selu differentiate from their rounded result.
    const double tolerance = item.narrow ? options_.narrow_tolerance : options_.tolerance;
    const OperatorModel model = import_case(folder_, item);
    opdag::Partition one;
    one.stage_of.assign(model.graph.nodes.size(), 0);
    const OperatorRun whole = must(compute(model, one, options_.device));
    if (item.random) {
      ++random_;
    } else if (std::string fault = faults(whole, truths_.at(item.name), tolerance);
               !fault.empty()) {
      return fault;
    }
    const opdag::Partition cut = cut_around(model.graph, item);
    if (cut.stage_of.empty()) {
      ++uncut_;
      return "";
    }
    ++cut_;
    return cut_faults(whole, must(compute(model, cut, options_.device)),
                      options_.same_bits ? 0 : tolerance);
  }

  const OperatorDatabaseOptions& options_;
  fs::path folder_;
  std::string torch_;
  job::Safetensors file_;
  Cases truths_;
  std::set<std::string> proven_, unexplained_;
  std::map<std::string, std::string> reasons_;
  size_t equal_ = 0, different_ = 0, unavailable_ = 0, late_ = 0;
  size_t cut_ = 0, uncut_ = 0, random_ = 0;
};

}  // namespace

std::string from_environment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

void run_operator_database(const OperatorDatabaseOptions& options) {
  at::set_num_threads(1);
  OperatorDatabase database(options);
  database.run();
  database.report();
}

}  // namespace weft::executor::testing
