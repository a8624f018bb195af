// Real exports, made by PyTorch during the test: imported, written as text, run by PyTorch
// operator by operator (tests/models/check_import.py) and compared with the module itself.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "opdag/derive.h"
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

}  // namespace
}  // namespace weft::opdag
