#include "executor/waiting_program.h"

#include <chrono>
#include <cmath>
#include <functional>

#include "tests/unit/executor/runtime_support.h"

namespace weft::executor::testing {
namespace {

using opdag::testing::GraphBuilder;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A product large enough to take milliseconds.
constexpr int64_t kWidth = 512;

struct Model {
  opdag::Graph graph;
  Program program;
};

Model model() {
  GraphBuilder b;
  const auto x = b.input("x", {kWidth, kWidth});
  const auto w = b.parameter("w", {kWidth, kWidth});
  const auto hidden = b.tanh(b.linear(x, w));
  const auto y = b.mean(hidden);
  Model result;
  result.graph = must(b.build());
  ProgramSpec spec;
  spec.nodes = {0, 1, 2};
  spec.inputs = {{x, opdag::kNone}, {w, opdag::kNone}};
  spec.gradients = {true, true};
  spec.outputs = {y, hidden};
  result.program = must(Program::compile(result.graph, spec));
  return result;
}

TEST(WaitingProgram, GivesZerosOfTheRightFormAndNoLoss) {
  const Model of = model();
  const at::Tensor input = at::randn({kWidth, kWidth}), weight = at::randn({kWidth, kWidth});
  WaitingProgram waiting(of.program, {true, false}, 0);
  for (int32_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
    for (const bool split : {false, true}) {
      RunContext context;
      context.micro_batch = micro_batch;
      const auto run = must(waiting.run({input, weight}, context));
      EXPECT_TRUE(std::isnan(run.outputs[0].toTensor().item<float>()));
      const at::Tensor hidden = run.outputs[1].toTensor();
      EXPECT_EQ(hidden.sizes(), at::IntArrayRef({kWidth, kWidth}));
      EXPECT_EQ(hidden.scalar_type(), at::kFloat);
      EXPECT_EQ(hidden.abs().max().item<float>(), 0);
      ASSERT_TRUE(run.recording);
      std::vector<at::Tensor> found, rest;
      if (split) {
        found = run.recording->backward_first({}, {true, false});
        EXPECT_FALSE(found[1].defined());
        rest = run.recording->backward_rest();
        EXPECT_FALSE(rest[0].defined());
        found[1] = rest[1];
      } else {
        found = run.recording->backward({});
      }
      EXPECT_TRUE(at::equal(found[0], at::zeros({kWidth, kWidth})));
      // The gradient of a weight comes once a step.
      ASSERT_EQ(found[1].defined(), micro_batch == 0);
      if (micro_batch == 0) {
        EXPECT_TRUE(at::equal(found[1], at::zeros({kWidth, kWidth})));
      }
    }
  }
}

TEST(WaitingProgram, TakesAsLongAsTheProgramDoes) {
  const Model of = model();
  const at::Tensor input = at::randn({kWidth, kWidth}), weight = at::randn({kWidth, kWidth});
  WaitingProgram waiting(of.program, {true, false}, 0);
  must(waiting.run({input, weight}, {}));
  double least = 1e9;  // of the program itself: a lower bound of any median of its times
  for (int i = 0; i < 20; ++i) {
    least = std::min(least, seconds_of([&] { must(of.program.run({input, weight}, {})); }));
  }
  Program::Values values;
  const double forward = seconds_of([&] { values = must(waiting.run({input, weight}, {})); });
  EXPECT_GT(forward, 0.5 * least);
  EXPECT_GT(seconds_of([&] { values.recording->backward({}); }), 0.5 * least);
}

}  // namespace
}  // namespace weft::executor::testing
