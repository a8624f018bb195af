// Public model classes and features of PyTorch's exports (tests/models/zoo.py) against PyTorch
// itself: one stage and three, over random legal cuts and both schedules.
#include <tuple>

#include "opdag/cut.h"
#include "opdag/derive.h"
#include "opdag/import.h"
#include "opdag/text.h"
#include "tests/support/exported_models.h"
#include "tests/support/zoo_names.h"

namespace weft::executor::testing {
namespace {

class Zoo : public ::testing::TestWithParam<std::string> {
 protected:
  std::string name() const { return "zoo/" + GetParam(); }
};

// Buffers the step changed are PyTorch's, the others as they were.
void expect_buffers(const Model& model, const Computed& found, const Tensors& truth) {
  const Tensors updated = part_of(truth, "updated.");
  for (const auto& [name, tensor] : updated) {
    const opdag::Leaf* leaf = model.graph.find_leaf(name);
    if (leaf == nullptr || !leaf->persistent) continue;  // no part of the state
    ASSERT_TRUE(found.state.contains(name)) << name;
    EXPECT_LE(difference(tensor, found.state.at(name)), 1e-10) << name;
  }
}

TEST_P(Zoo, LossAndGradientsInFloat64) {
  const Model model = load(name(), true);
  const Tensors truth = reference(name(), "f64");
  const Computed whole = differentiate(model, {});
  expect_equals_f64(whole, truth);
  expect_buffers(model, whole, truth);
  for (const auto& [schedule, cut_seed, recompute] :
       {std::tuple{kGPipe, 41U, false}, {kZbH1, 42U, false}, {kGPipe, 45U, true}}) {
    const Computed parts = differentiate(
        model, {.stages = 3, .schedule = schedule, .cut_seed = cut_seed, .recompute = recompute});
    EXPECT_EQ(parts.loss, whole.loss);
    expect_same_bits(whole.gradients, parts.gradients);
    expect_buffers(model, parts, truth);
  }
}

TEST_P(Zoo, Float32IsAsNearToTheTruthAsPyTorch) {
  const Model model = load(name(), false);
  const Tensors truth = reference(name(), "f64"), torch32 = reference(name(), "f32");
  for (const int32_t stages : {1, 3}) {
    SCOPED_TRACE(stages);
    expect_as_near_as_torch(
        differentiate(model, {.stages = stages, .precision = Precision::kFp32, .cut_seed = 43}),
        truth, torch32);
  }
}

constexpr auto kName = [](const auto& info) { return info.param; };
INSTANTIATE_TEST_SUITE_P(Language, Zoo, ::testing::ValuesIn(kZooLanguage), kName);
INSTANTIATE_TEST_SUITE_P(Vision, Zoo, ::testing::ValuesIn(kZooVision), kName);
INSTANTIATE_TEST_SUITE_P(Nets, Zoo, ::testing::ValuesIn(kZooNets), kName);
INSTANTIATE_TEST_SUITE_P(Features, Zoo, ::testing::ValuesIn(kZooFeatures), kName);

// An export whose batch is open, closed at that of another export: the same graph, so the same
// bits; and PyTorch's numbers for that batch.
class ZooOpenBatch : public ::testing::TestWithParam<std::string> {};

TEST_P(ZooOpenBatch, IsTheExportOfThatBatch) {
  const std::string name = "zoo/" + GetParam();
  Model model = load(name, false);
  const auto archive = must(opdag::Archive::open(exported(name + ".open")));
  const int64_t batch = model.inputs.begin()->second.size(0);
  opdag::Graph closed = must(opdag::import_graph(archive, {.micro_batch = batch}));
  EXPECT_EQ(closed.warnings, model.graph.warnings);
  closed = must(opdag::prune_to(closed, {}));
  for (opdag::Graph* graph : {&closed, &model.graph}) {
    for (opdag::Value& value : graph->values) value.name = std::to_string(value.id);
  }
  EXPECT_EQ(opdag::to_text(closed), opdag::to_text(model.graph));
  model.graph = must(opdag::promote_f64(closed));
  model.weights = [&archive](const opdag::WeightRef& ref) { return archive.entry(ref.path); };
  const Tensors truth = reference(name, "f64");
  const Computed whole = differentiate(model, {});
  expect_equals_f64(whole, truth);
  expect_same_bits(whole.gradients, differentiate(model, {.stages = 3, .cut_seed = 44}).gradients);
}

INSTANTIATE_TEST_SUITE_P(Models, ZooOpenBatch, ::testing::ValuesIn(kZooOpen), kName);

// Layers before the first trainable one: no gradient, no optimizer state, nothing sent backward.
TEST(ZooFeatures, FrozenStagesAreLeftAlone) {
  const Model model = load("zoo/frozen", false);
  RolledFeed feed(model.inputs);
  const std::vector<double> even(opdag::cut_units(model.graph).size(), 1.0);
  const opdag::Partition cut = must(opdag::split_contiguous(model.graph, even, 6));
  const opdag::StageGraph stages = must(opdag::stage_graph(model.graph, cut));
  EXPECT_FALSE(stages.consumers_of(0).empty());
  int32_t with_gradient = 0;
  for (const opdag::Edge& edge : stages.edges) {
    EXPECT_FALSE(edge.from == 0 && edge.needs_grad) << edge.id;
    with_gradient += edge.needs_grad ? 1 : 0;
  }
  EXPECT_GT(with_gradient, 0);
  const auto cluster =
      cluster_of(model, {.stages = 3, .precision = Precision::kFp32, .keep_gradients = true}, feed);
  must(cluster->step(0));
  const Tensors state = cluster->state();
  for (const opdag::Leaf& leaf : model.graph.leaves) {
    if (!leaf.target.starts_with("trunk.")) continue;
    EXPECT_FALSE(leaf.trainable);
    EXPECT_FALSE(cluster->gradients().contains(leaf.target));
    for (const auto& [name, tensor] : state) {
      EXPECT_TRUE(name == leaf.target || !name.ends_with(leaf.target)) << name;
    }
  }
  EXPECT_TRUE(state.contains("trunk.0.weight"));
}

struct Refusal {
  std::string name;
  std::vector<std::string> words;
};

// What cannot run is refused by name, and the message says what to do.
TEST(ZooFeatures, RefusedByName) {
  const std::vector<Refusal> refusals = {
      {"custom_op", {"zoo::double", "replace the custom operator"}},
      {"autocast_bf16", {"wrap_with_autocast", "train.precision"}},
      {"dynamic_columns",
       {"dimension 1 of input 'x'", "only the batch may be open",
        "drop dynamic_shapes={\"x\": {1: ...}}"}},
      {"data_dependent", {"depends on the data", "torch.where"}},
      {"branches", {"higher_order::cond", "trace one branch"}},
  };
  for (const auto& [name, words] : refusals) {
    auto archive = must(opdag::Archive::open(exported("zoo/" + name)));
    const auto graph = opdag::import_graph(archive);
    ASSERT_FALSE(graph.ok()) << name;
    EXPECT_EQ(graph.error().code, Code::kRefused);
    for (const std::string& word : words) {
      EXPECT_NE(graph.error().text().find(word), std::string::npos) << graph.error().text();
    }
  }
}

}  // namespace
}  // namespace weft::executor::testing
