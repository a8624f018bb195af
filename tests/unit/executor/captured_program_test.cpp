// Captures that fail: the step goes on with the numbers of a plain run. Graphs that work need a
// card: tests/gpu/executor/capture_test.cpp.
#include "executor/capture/captured_program.h"

#include <stdexcept>

#include "tests/unit/executor/runtime_support.h"

namespace weft::executor::testing {
namespace {

using opdag::testing::GraphBuilder;

// Runs what it captures, once; the capture of number `fails` throws half way.
class FailingSpace final : public GraphSpace {
 public:
  explicit FailingSpace(int fails) : fails_(fails) {}
  std::unique_ptr<DeviceGraph> capture(size_t,
                                       const std::function<void(const Draw&)>& work) override {
    class Done final : public DeviceGraph {
      void replay(const std::vector<uint64_t>&) override {}
    };
    work([](const std::function<void()>& call) { call(); });
    if (captures_++ == fails_) throw std::runtime_error("operation not permitted while capturing");
    return std::make_unique<Done>();
  }

 private:
  int fails_, captures_ = 0;
};

TEST(CapturedProgram, WhereACaptureFailsTheStepGoesOnPlainly) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto w = b.parameter("w", {8, 8});
  const auto y = b.mean(b.tanh(b.linear(x, w)));
  const opdag::Graph graph = must(b.build());
  ProgramSpec spec;
  spec.nodes = {0, 1, 2};
  spec.inputs = {{x, opdag::kNone}, {w, opdag::kNone}};
  spec.gradients = {true, true};
  spec.outputs = {y};
  const Program program = must(Program::compile(graph, spec));
  const auto seed = [] { return std::vector<Seed>{{false, 0, at::ones({})}}; };
  const auto whole = [&](Recording& recording) { return recording.backward(seed()); };
  const auto split = [&](Recording& recording) {
    auto found = recording.backward_first(seed(), {true, false});
    EXPECT_FALSE(found[1].defined());
    auto rest = recording.backward_rest();
    EXPECT_FALSE(rest[0].defined());
    found[1] = rest[1];
    return found;
  };
  using Backward = std::function<std::vector<at::Tensor>(Recording&)>;
  // The capture that fails: of the forward, the backward or its first part, its second part.
  const std::vector<std::pair<int, Backward>> cases{
      {0, whole}, {1, whole}, {0, split}, {1, split}, {2, split}};
  for (const auto& [fails, backward] : cases) {
    int spaces = 0;
    CapturedProgram captured(program,
                             [&, fails = fails] {
                               ++spaces;
                               return std::make_unique<FailingSpace>(fails);
                             },
                             {false, true});
    const at::Tensor weight = at::randn({8, 8});
    for (int step = 0; step < 5; ++step) {
      const at::Tensor input = at::randn({4, 8});
      const auto plain = must(program.run({input, weight}, {}));
      const auto run = must(captured.run({input, weight}, {}));
      EXPECT_TRUE(at::equal(plain.outputs[0].toTensor(), run.outputs[0].toTensor()));
      const auto expected = plain.recording->backward(seed());
      const auto found = backward(*run.recording);
      EXPECT_TRUE(at::equal(expected[0], found[0]) && at::equal(expected[1], found[1]));
    }
    EXPECT_EQ(spaces, 1);  // it is not tried again
    // Two warm-ups, and the captures up to the one that failed: what comes then is as it will be.
    EXPECT_EQ(captured.preparations(), static_cast<size_t>(2 + fails + 1));
  }
}

// Says what it was asked to capture and to replay.
class TellingSpace final : public GraphSpace {
 public:
  struct Told {
    std::vector<size_t> draws, drawn;
    std::vector<std::vector<uint64_t>> seeds;
  };
  explicit TellingSpace(Told& told) : told_(told) {}
  std::unique_ptr<DeviceGraph> capture(size_t draws,
                                       const std::function<void(const Draw&)>& work) override {
    class Graph final : public DeviceGraph {
     public:
      explicit Graph(Told& told) : told_(told) {}
      void replay(const std::vector<uint64_t>& seeds) override { told_.seeds.push_back(seeds); }

     private:
      Told& told_;
    };
    size_t drawn = 0;
    work([&](const std::function<void()>& call) {
      ++drawn;
      call();
    });
    told_.draws.push_back(draws);
    told_.drawn.push_back(drawn);
    return std::make_unique<Graph>(told_);
  }

 private:
  Told& told_;
};

TEST(CapturedProgram, EachReplayHasTheSeedsOfItsMicroBatchInTheOrderOfTheDraws) {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto first = b.dropout(x, 0.5);
  b.dropout(first, 0.5);  // nobody reads it: it is not run
  const auto y = b.mean(b.dropout(b.tanh(first), 0.5));
  const opdag::Graph graph = must(b.build());
  ProgramSpec spec;
  spec.nodes = {0, 1, 2, 3, 4};
  spec.inputs = {{x, opdag::kNone}};
  spec.gradients = {true};
  spec.outputs = {y};
  const Program program = must(Program::compile(graph, spec));
  const std::vector<opdag::NodeId> nodes{graph.nodes[0].id, graph.nodes[3].id};
  EXPECT_EQ(program.draws(), nodes);
  TellingSpace::Told told;
  CapturedProgram captured(program, [&] { return std::make_unique<TellingSpace>(told); }, {false});
  const at::Tensor input = at::randn({4, 8});
  std::vector<std::vector<uint64_t>> expected;
  for (int64_t step = 0; step < 6; ++step) {
    RunContext context;
    context.seed = 9;
    context.step = step;
    context.micro_batch = static_cast<int32_t>(step % 2);
    auto values = must(captured.run({input}, context));
    if (step < 2) continue;  // warm-ups
    expected.push_back({Program::seed_of(nodes[0], context), Program::seed_of(nodes[1], context)});
    values.recording->backward({{false, 0, at::ones({})}});
    expected.emplace_back();  // a backward draws nothing
  }
  EXPECT_EQ(told.seeds, expected);
  EXPECT_EQ(told.draws, (std::vector<size_t>{2, 0}));
  EXPECT_EQ(told.drawn, told.draws);
}

}  // namespace
}  // namespace weft::executor::testing
