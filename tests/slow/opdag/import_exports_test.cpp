// Real exports, made by PyTorch during the test: imported, written as text, run by PyTorch
// operator by operator (tests/models/check_import.py) and compared with the module itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "opdag/cut.h"
#include "opdag/derive.h"
#include "opdag/from_nothing.h"
#include "opdag/import.h"
#include "opdag/text.h"

namespace weft::opdag {
namespace {

std::string source_dir() {
  const char* dir = std::getenv("WEFT_SOURCE_DIR");
  return dir == nullptr ? "." : dir;
}

std::string python(const std::string& script) {
  return source_dir() + "/.venv/bin/python " + source_dir() + "/tests/models/" + script;
}

const std::string& exports() {
  static const std::string folder = [] {
    std::string dir = ::testing::TempDir() + "weft_exports";
    const std::string command = python("export_models.py") + " --out " + dir + " > /dev/null 2>&1";
    if (std::system(command.c_str()) != 0) dir.clear();
    return dir;
  }();
  return folder;
}

struct Case {
  const char* model;
  const char* mode;  // train, eval, f64
};

class Exports : public ::testing::TestWithParam<Case> {};

TEST_P(Exports, EqualTheModule) {
  if (!std::filesystem::exists(source_dir() + "/.venv/bin/python")) {
    GTEST_SKIP() << "no .venv: run scripts/deps";
  }
  ASSERT_FALSE(exports().empty()) << "tests/models/export_models.py failed";
  const auto [model, mode] = GetParam();
  const std::string path = exports() + "/" + model + ".pt2";
  const auto archive = Archive::open(path);
  ASSERT_TRUE(archive.ok()) << archive.error().text();
  auto graph = import_graph(*archive);
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  EXPECT_EQ(graph->train_mode, std::string(model) != "gpt2_eval");
  if (std::string(mode) == "eval") graph = derive_eval(*graph);
  if (std::string(mode) == "f64") graph = promote_f64(*graph);
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  for (const Node& node : graph->nodes) EXPECT_EQ(node.atomic_group, kNone) << node.op;

  const std::string text = to_text(*graph);
  const auto back = parse_text(text);
  ASSERT_TRUE(back.ok()) << back.error().text();
  EXPECT_EQ(*back, *graph);
  const std::string file = path + "." + mode + ".txt";
  std::ofstream(file) << text;
  const std::string command =
      python("check_import.py") + " " + model + " " + path + " " + file + " " + mode;
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

INSTANTIATE_TEST_SUITE_P(
    All, Exports,
    ::testing::Values(Case{"gpt2", "train"}, Case{"llama", "train"}, Case{"resnet18", "train"},
                      Case{"skips", "train"}, Case{"gpt2_dropout", "eval"},
                      Case{"resnet18", "eval"}, Case{"skips", "eval"}, Case{"gpt2_eval", "eval"},
                      Case{"gpt2", "f64"}, Case{"llama", "f64"}, Case{"skips", "f64"}),
    [](const auto& info) { return std::string(info.param.model) + "_" + info.param.mode; });

// By value: whether it comes from what the user gives.
std::vector<bool> from_inputs(const Graph& graph) {
  std::vector<bool> result(graph.values.size(), false);
  for (const Leaf& leaf : graph.leaves) {
    result[static_cast<size_t>(leaf.value)] = leaf.kind == LeafKind::kUserInput;
  }
  for (const Node& node : graph.nodes) {
    const auto inputs = inputs_of(node);
    const bool any = std::any_of(inputs.begin(), inputs.end(),
                                 [&](ValueId id) { return result[static_cast<size_t>(id)]; });
    for (ValueId id : node.outputs) {
      if (id == kNone) continue;
      result[static_cast<size_t>(id)] = any;
      for (ValueId part : graph.value(id).elements) {
        if (part != kNone) result[static_cast<size_t>(part)] = any;
      }
    }
  }
  return result;
}

// Masks, ids of positions and tables of rotations are computed where they are read. What else has
// no gradient are the user's tokens and labels on their way.
TEST(Exports, OnlyWhatIsTrainedOrGivenCrossesTheCutsOfALanguageModel) {
  if (!std::filesystem::exists(source_dir() + "/.venv/bin/python")) {
    GTEST_SKIP() << "no .venv: run scripts/deps";
  }
  ASSERT_FALSE(exports().empty()) << "tests/models/export_models.py failed";
  for (const char* model : {"gpt2", "llama"}) {
    const auto archive = Archive::open(exports() + "/" + model + ".pt2");
    ASSERT_TRUE(archive.ok()) << archive.error().text();
    const auto graph = import_graph(*archive);
    ASSERT_TRUE(graph.ok()) << graph.error().text();
    const std::vector<bool> from_nothing = nodes_from_nothing(*graph);
    EXPECT_GT(std::count(from_nothing.begin(), from_nothing.end(), true), 5) << model;
    const std::vector<bool> given = from_inputs(*graph);
    Rng rng(1);
    for (int round = 0; round < 50; ++round) {
      const auto cut = random_partition(*graph, 2 + round % 4, rng);
      ASSERT_TRUE(cut.ok());
      const auto stages = stage_graph(*graph, *cut);
      ASSERT_TRUE(stages.ok());
      for (const Edge& edge : stages->edges) {
        EXPECT_TRUE(edge.needs_grad || given[static_cast<size_t>(edge.value)])
            << model << " sends " << graph->value(edge.value).name;
      }
    }
  }
}

}  // namespace
}  // namespace weft::opdag
