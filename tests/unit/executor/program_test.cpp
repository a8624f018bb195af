#include "executor/program.h"

#include "executor/fan_out.h"
#include "executor/weights.h"
#include "tests/unit/executor/runtime_support.h"

namespace weft::executor::testing {
namespace {

using opdag::testing::GraphBuilder;

Program compile(const opdag::Graph& graph, opdag::ValueId input, opdag::ValueId output) {
  ProgramSpec spec;
  for (size_t i = 0; i < graph.nodes.size(); ++i) spec.nodes.push_back(static_cast<int32_t>(i));
  spec.inputs = {{input, opdag::kNone}};
  spec.outputs = {output};
  return must(Program::compile(graph, spec));
}

TEST(Program, NumbersBecomeTensorsListsAndDefaults) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto scaled =
      b.op("aten::mul.Tensor", {{"self", opdag::ValueArg{x}}, {"other", 0.5}}, {4, 8});
  const auto parts = b.split2(scaled);
  const auto y = b.cat({parts[1], parts[0]});
  const auto mean = b.op("aten::mean.dim",
                         {{"self", opdag::ValueArg{y}}, {"dim", opdag::IntListArg{{{1}}}}}, {4});
  const opdag::Graph graph = must(b.build());
  const at::Tensor input = at::randn({4, 8});
  const auto values = must(compile(graph, x, mean).run({input}, {}));
  EXPECT_TRUE(at::allclose(values.outputs[0].toTensor(), (input * 0.5).mean(1)));
  // A wrapped number does not widen the element type.
  EXPECT_EQ(values.outputs[0].toTensor().scalar_type(), at::kFloat);
}

TEST(Program, RandomOperatorsDependOnlyOnTheirSeed) {
  GraphBuilder b;
  const auto x = b.input("x", {64, 8});
  const auto y = b.dropout(x, 0.5);
  const opdag::Graph graph = must(b.build());
  const Program program = compile(graph, x, y);
  const auto draw = [&](const RunContext& context) {
    return must(program.run({at::ones({64, 8})}, context)).outputs[0].toTensor();
  };
  const RunContext context{1, 2, 3, true};
  const at::Tensor first = draw(context);
  at::randn({100});  // others draw in between
  EXPECT_TRUE(at::equal(first, draw(context)));
  EXPECT_FALSE(at::equal(first, draw({1, 2, 4, true})));
  EXPECT_FALSE(at::equal(first, draw({1, 3, 3, true})));
  EXPECT_FALSE(at::equal(first, draw({2, 2, 3, true})));
}

// Another device's kernels lay their results out differently than where the model was exported.
TEST(Program, AViewOfMemoryLaidOutDifferentlyIsAReshape) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto y =
      b.op("aten::view", {{"self", opdag::ValueArg{x}}, {"size", opdag::IntListArg{{{32}}}}}, {32});
  opdag::Graph graph = must(b.build());
  const at::Tensor transposed = at::randn({8, 4}).t();
  const auto values = must(compile(graph, x, y).run({transposed}, {}));
  EXPECT_TRUE(at::equal(values.outputs[0].toTensor(), transposed.reshape({32})));
  const at::Tensor whole = at::randn({4, 8});
  EXPECT_TRUE(must(compile(graph, x, y).run({whole}, {})).outputs[0].toTensor().is_alias_of(whole));
  // What may be written through must stay a view.
  graph.nodes[0].atomic_group = 0;
  EXPECT_FALSE(compile(graph, x, y).run({transposed}, {}).ok());
}

TEST(Program, AMaskIsFilledWithinTheRangeOfItsType) {
  GraphBuilder b;
  const auto x = b.input("x", {4});
  const auto mask = b.op("aten::gt.Scalar", {{"self", opdag::ValueArg{x}}, {"other", 0.0}}, {4});
  const auto y = b.op("aten::masked_fill.Scalar",
                      {{"self", opdag::ValueArg{x}},
                       {"mask", opdag::ValueArg{mask}},
                       {"value", double{std::numeric_limits<float>::lowest()}}},
                      {4});
  const opdag::Graph graph = must(b.build());
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor input = at::tensor({-1.0, 1.0, 2.0, -2.0}).to(type);
    const auto filled = must(compile(graph, x, y).run({input}, {})).outputs[0].toTensor();
    EXPECT_EQ(filled.scalar_type(), type);
    EXPECT_TRUE(filled.isfinite().all().item<bool>());
    EXPECT_LT(filled[1].item<double>(), -6e4);
    EXPECT_EQ(filled[0].item<double>(), -1);
  }
}

TEST(Program, AFailingOperatorIsNamed) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto y = b.relu(b.linear(x, b.input("w", {8, 8})));
  const opdag::Graph graph = must(b.build());
  ProgramSpec spec;
  spec.nodes = {0, 1};
  spec.inputs = {{x, opdag::kNone}, {graph.leaves[1].value, opdag::kNone}};
  spec.outputs = {y};
  const Program program = must(Program::compile(graph, spec));
  const auto result = program.run({at::randn({4, 8}), at::randn({8, 5})}, {});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().op, "aten::linear");
  EXPECT_EQ(result.error().node, "0");
}

// What nobody reads is not run, unless it writes.
TEST(Program, StepsForNothingAreLeftOut) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8}), w = b.input("w", {8, 8});
  const auto unread = b.tanh(b.linear(x, w));  // of x and this w it fails
  const auto mean = b.input("mean", {8}), var = b.input("var", {8});
  b.op("aten::batch_norm",
       {{"input", opdag::ValueArg{x}},
        {"running_mean", opdag::ValueArg{mean}},
        {"running_var", opdag::ValueArg{var}},
        {"training", true},
        {"momentum", 0.5},
        {"eps", 1e-5},
        {"cudnn_enabled", true}},
       {4, 8});
  const auto parts = b.split2(x);
  const auto y = b.relu(parts[1]);
  const opdag::Graph graph = must(b.build());
  ProgramSpec spec;
  spec.nodes = {0, 1, 2, 3, 4};
  for (const auto input : {x, w, mean, var}) spec.inputs.push_back({input, opdag::kNone});
  spec.outputs = {y};
  const at::Tensor input = at::randn({4, 8}), means = at::zeros({8});
  const auto run = [&] {
    return must(Program::compile(graph, spec))
        .run({input, at::randn({5, 5}), means, at::ones({8})}, {});
  };
  EXPECT_TRUE(at::equal(must(run()).outputs[0].toTensor(), input.slice(1, 4).relu()));
  EXPECT_TRUE(at::allclose(means, input.mean(0) / 2));
  spec.outputs.push_back(unread);
  EXPECT_FALSE(run().ok());
}

TEST(Program, UnknownOperatorAndArgumentAreRefused) {
  GraphBuilder b;
  const auto x = b.input("x", {4});
  const auto y = b.relu(x);
  opdag::Graph graph = must(b.build());
  graph.nodes[0].op = "aten::no_such_operator";
  ProgramSpec spec;
  spec.nodes = {0};
  spec.inputs = {{x, opdag::kNone}};
  spec.outputs = {y};
  EXPECT_EQ(Program::compile(graph, spec).error().op, "aten::no_such_operator");
  graph.nodes[0].op = "aten::relu";
  graph.nodes[0].arguments.push_back({"slope", 0.1});
  EXPECT_FALSE(Program::compile(graph, spec).ok());
}

TEST(Program, GradientGroupsPartWhereTheFoldWouldChange) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto h = b.linear(x, "w0", 8);                     // node 0
  const auto a = b.tanh(h), c = b.relu(h), d = b.tanh(h);  // 1 2 3
  b.loss(b.mean(b.add(b.add(a, c), d)));                   // 4 5 6
  const opdag::Graph graph = must(b.build());
  opdag::Partition cut{3, {0, 1, 1, 2, 2, 2, 2}};
  const auto stages = must(opdag::stage_graph(graph, cut));
  for (const opdag::Edge& edge : stages.edges) {
    if (edge.value != h) continue;
    const auto groups = gradient_groups(graph, cut, edge, true);
    if (edge.to == 1) {
      EXPECT_EQ(groups, (std::vector<std::vector<int32_t>>{{2}, {1}}));
    } else {
      EXPECT_EQ(groups, (std::vector<std::vector<int32_t>>{{3}}));
    }
  }
}

TEST(Program, WeightsAreCheckedAgainstTheirFile) {
  opdag::WeightRef ref;
  ref.path = "data/weights/weight_0";
  ref.sizes = {2, 3};
  ref.strides = {1, 2};
  std::vector<float> numbers{0, 1, 2, 3, 4, 5};
  const auto* raw = reinterpret_cast<const std::byte*>(numbers.data());
  const Buffer bytes(std::vector<std::byte>(raw, raw + 24));
  const at::Tensor tensor = must(tensor_from_bytes(ref, bytes, DType::kFloat64, at::kCPU));
  EXPECT_EQ(tensor.scalar_type(), at::kDouble);
  EXPECT_EQ(tensor.stride(0), 1);
  EXPECT_EQ(tensor[1][2].item<double>(), 5);
  for (const auto& strides :
       std::vector<std::vector<int64_t>>{{3, 2}, {-1, 2}, {1}, {1, int64_t{1} << 60}}) {
    ref.strides = strides;
    EXPECT_FALSE(tensor_from_bytes(ref, bytes, DType::kFloat32, at::kCPU).ok());
  }
}

}  // namespace
}  // namespace weft::executor::testing
