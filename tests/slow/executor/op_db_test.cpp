// Every allowed overload against PyTorch: the samples of PyTorch's own operator database as
// one-operator models (tests/models/op_db_export.py), whole and cut before and after the operator,
// loss and gradients equal to PyTorch's to 1e-10 (float64) and the cut equal to the whole bit for
// bit.
//
// Environment: WEFT_OP_DB reuses a folder made before; WEFT_OP_DB_ARGS are passed to the script
// (--all, --only TEXT, --limit-per-overload N); WEFT_OP_DB_REPORT names a file for the counts.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

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

std::string environment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

fs::path make_cases() {
  if (const std::string given = environment("WEFT_OP_DB", ""); !given.empty()) return given;
  const fs::path made = fs::path(::testing::TempDir()) / "weft_op_db";
  const fs::path source = environment("WEFT_SOURCE_DIR", ".");
  const fs::path own = source / ".venv/bin/python";
  const std::string python = environment("WEFT_PYTHON", fs::exists(own) ? own.string() : "python3");
  const std::string command =
      fmt::format("{} {}/tests/models/op_db_export.py --out {} --limit-per-overload 1 {}", python,
                  source.string(), made.string(), environment("WEFT_OP_DB_ARGS", ""));
  if (std::system(command.c_str()) != 0) throw std::runtime_error("op_db_export.py failed");
  return made;
}

struct OperatorCase {
  std::string name;
  std::set<std::string> overloads, before, after;
  bool random = false;
  double tolerance = 1e-10;
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

Result<OperatorRun> compute(const OperatorModel& model, const opdag::Partition& cut) {
  FixedFeed feed({});
  ClusterOptions options;
  options.runtime.plan = local_plan(cut, k1F1B);
  options.runtime.train.precision = Precision::kFp64;
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

std::string cut_faults(const OperatorRun& whole, const OperatorRun& parts) {
  if (parts.loss != whole.loss) return "the cut changes the loss";
  if (parts.gradients.size() != whole.gradients.size())
    return "the cut changes which gradients are";
  for (const auto& [name, tensor] : whole.gradients) {
    if (!at::equal(tensor, parts.gradients.at(name))) {
      return "the cut changes the gradient of " + name;
    }
  }
  return "";
}

class OperatorDatabase {
 public:
  explicit OperatorDatabase(const fs::path& folder) : folder_(folder) {
    std::ifstream stream(folder / "cases.json");
    summary_ = Json::parse(stream);
    file_ = must(job::read_safetensors(folder / "reference.safetensors"));
    for (const auto& [key, view] : file_.tensors) {
      const size_t at = key.find('/');
      truths_[key.substr(0, at)][key.substr(at + 1)] = must(tensor_of(view));
    }
  }

  void run() {
    // A case that ends the process is the last one named.
    const bool aloud = !environment("WEFT_OP_DB_ALOUD", "").empty();
    for (const Json& json : summary_.at("cases")) {
      OperatorCase item;
      item.name = json.at("name");
      item.overloads = json.at("overloads").get<std::set<std::string>>();
      item.before = json.at("before").get<std::set<std::string>>();
      item.after = json.at("after").get<std::set<std::string>>();
      item.random = json.at("random");
      // PyTorch's in-place elu, celu and selu differentiate from their rounded result.
      if (json.value("narrow", false)) item.tolerance = 1e-3;
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
      const Json reason = summary_.at("missing").value(name, Json(""));
      missing += fmt::format("  {}: {}\n", name, reason.get<std::string>());
    }
    const auto unexplained = summary_.at("unexplained").get<std::vector<std::string>>();
    for (const std::string& name : unexplained) {
      ADD_FAILURE() << name << " is in no case, and op_db_extra.py gives no reason";
    }
    const std::string text = fmt::format(
        "torch {}: {} overloads allowed, {} proven equal to PyTorch; {} cases, {} equal, {} cut "
        "before and after the operator, {} held in one piece by aliases of unproven kind; {} "
        "draw at random: cut against whole only. In no case:\n{}",
        summary_.at("torch").get<std::string>(), opdag::all_ops().size(), proven,
        equal_ + different_, equal_, cut_, uncut_, random_, missing);
    fmt::print("{}", text);
    if (const auto path = environment("WEFT_OP_DB_REPORT", ""); !path.empty()) {
      std::ofstream(path) << text;
    }
  }

 private:
  std::string run_case(const OperatorCase& item) {
    const OperatorModel model = import_case(folder_, item);
    opdag::Partition one;
    one.stage_of.assign(model.graph.nodes.size(), 0);
    const OperatorRun whole = must(compute(model, one));
    if (item.random) {
      ++random_;
    } else if (std::string fault = faults(whole, truths_.at(item.name), item.tolerance);
               !fault.empty()) {
      return fault;
    }
    const opdag::Partition cut = cut_around(model.graph, item);
    if (cut.stage_of.empty()) {
      ++uncut_;
      return "";
    }
    ++cut_;
    return cut_faults(whole, must(compute(model, cut)));
  }

  fs::path folder_;
  Json summary_;
  job::Safetensors file_;
  std::map<std::string, Tensors> truths_;
  std::set<std::string> proven_;
  size_t equal_ = 0, different_ = 0, cut_ = 0, uncut_ = 0, random_ = 0;
};

TEST(OperatorDatabase, EveryAllowedOverloadEqualsPyTorch) {
  at::set_num_threads(1);
  OperatorDatabase database(make_cases());
  database.run();
  database.report();
}

}  // namespace
}  // namespace weft::executor::testing
