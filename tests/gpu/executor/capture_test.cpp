// Passes as CUDA graphs: the numbers of plain runs, whatever is in flight, and statistics that move
// once a micro-batch.
#include <ATen/DeviceAccelerator.h>

#include "executor/capture/capturable.h"
#include "executor/capture/captured_program.h"
#include "executor/transfer.h"
#include "tests/gpu/executor/card.h"
#include "tests/unit/executor/runtime_support.h"

namespace weft::executor::testing {
namespace {

using opdag::testing::GraphBuilder;

const at::Device kCard(at::kCUDA, 0);

class GpuCapture : public OnCard<> {};

at::Tensor random(at::IntArrayRef sizes) {
  return at::randn(sizes, at::device(kCard));
}

struct Net {
  opdag::Graph graph;
  Program program;
};

// Gradients of x and w are wanted.
Net compiled(GraphBuilder& b, opdag::ValueId x, opdag::ValueId w,
             std::vector<opdag::ValueId> outputs, std::set<opdag::ValueId> fan_out) {
  Net net{must(b.build()), {}};
  ProgramSpec spec;
  for (size_t i = 0; i < net.graph.nodes.size(); ++i) spec.nodes.push_back(static_cast<int32_t>(i));
  spec.inputs = {{x, opdag::kNone}, {w, opdag::kNone}};
  spec.gradients = {true, true};
  spec.outputs = std::move(outputs);
  spec.fan_out = std::move(fan_out);
  spec.device = kCard;
  EXPECT_EQ(why_not_capturable(net.graph, spec.nodes), "");
  net.program = must(Program::compile(net.graph, spec));
  return net;
}

// A loss of x and a weight.
Net small_net() {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto w = b.parameter("w", {8, 8});
  const auto h = b.tanh(b.linear(x, w));
  const auto y =
      b.mean(b.mul(b.add(h, x), b.op("aten::erf", {{"self", opdag::ValueArg{h}}}, {4, 8})));
  return compiled(b, x, w, {y, h}, {x, h});
}

std::vector<at::Tensor> gradients(const Program::Values& values) {
  const at::Tensor loss = values.outputs[0].toTensor();
  auto found = values.recording->backward({{false, 0, at::full_like(loss, 0.5)}});
  for (at::Tensor& gradient : found) gradient = gradient.clone();
  return found;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::allclose(a[i], b[i], 1e-6, 1e-7)) << i;
}

TEST_F(GpuCapture, ReplaysGiveTheNumbersOfPlainRuns) {
  const Net net = small_net();
  CapturedProgram captured(net.program, kCard, {false, true});
  const at::Tensor w = random({8, 8});
  for (int step = 0; step < 6; ++step) {
    const at::Tensor x = random({4, 8});
    const auto plain = must(net.program.run({x, w}, {}));
    const auto replayed = must(captured.run({x.clone(), w}, {}));
    EXPECT_TRUE(at::allclose(plain.outputs[0].toTensor(), replayed.outputs[0].toTensor()));
    EXPECT_TRUE(at::allclose(plain.outputs[1].toTensor(), replayed.outputs[1].toTensor()));
    expect_equal(gradients(plain), gradients(replayed));
    w.add_(0.01);  // in place, as an optimizer does
  }
  EXPECT_EQ(captured.passes(), 1U);
}

TEST_F(GpuCapture, EachMicroBatchInFlightHasAPassOfItsOwn) {
  const Net net = small_net();
  CapturedProgram captured(net.program, kCard, {false, true});
  const at::Tensor w = random({8, 8});
  for (int round = 0; round < 4; ++round) {
    std::vector<Program::Values> plain, replayed;
    for (int i = 0; i < 3; ++i) {
      const at::Tensor x = random({4, 8});
      plain.push_back(must(net.program.run({x, w}, {})));
      replayed.push_back(must(captured.run({x, w}, {})));
    }
    for (size_t i : {1, 0, 2}) expect_equal(gradients(plain[i]), gradients(replayed[i]));
  }
  EXPECT_EQ(captured.passes(), 3U);
  {  // a step that was given up frees its passes
    const auto dropped = must(captured.run({random({4, 8}), w}, {}));
  }
  EXPECT_EQ(captured.passes(), 3U);
  // A weight that moved makes passes of it useless; they are captured again.
  const at::Tensor moved = random({8, 8}), x = random({4, 8});
  expect_equal(gradients(must(net.program.run({x, moved}, {}))),
               gradients(must(captured.run({x, moved}, {}))));
  EXPECT_EQ(captured.passes(), 1U);
}

// Attention and a plain dropout; outputs are the loss and what was kept.
Net drawing_net() {
  GraphBuilder b;
  const auto x = b.input("x", {2, 4, 32, 16});
  const auto w = b.parameter("w", {2, 4, 32, 16});
  const auto h = b.op("aten::scaled_dot_product_attention",
                      {{"query", opdag::ValueArg{x}},
                       {"key", opdag::ValueArg{w}},
                       {"value", opdag::ValueArg{w}},
                       {"attn_mask", opdag::NoneArg{}},
                       {"dropout_p", 0.3},
                       {"is_causal", true}},
                      {2, 4, 32, 16});
  const auto y = b.dropout(h, 0.5);
  const auto loss = b.mean(b.mul(y, y));
  Net net = compiled(b, x, w, {loss, y}, {w, y});
  EXPECT_EQ(net.program.draws().size(), 2U);
  return net;
}

TEST_F(GpuCapture, ReplaysDrawWhatPlainRunsDraw) {
  const Net net = drawing_net();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    CapturedProgram captured(net.program, kCard, {false, true});
    const at::Tensor x = random({2, 4, 32, 16}).to(type), w = random({2, 4, 32, 16}).to(type);
    at::Tensor before;
    for (int64_t step = 0; step < 4; ++step) {
      // Three in flight at once: a pass each, whose draws come one after the other's.
      std::vector<Program::Values> plain, replayed;
      for (int32_t micro_batch = 0; micro_batch < 3; ++micro_batch) {
        RunContext context;
        context.seed = 7;
        context.step = step;
        context.micro_batch = micro_batch;
        plain.push_back(must(net.program.run({x, w}, context)));
        replayed.push_back(must(captured.run({x.clone(), w}, context)));
        const at::Tensor kept = replayed.back().outputs[1].toTensor();
        EXPECT_TRUE(at::equal(plain.back().outputs[1].toTensor(), kept)) << step << micro_batch;
        EXPECT_FALSE(before.defined() && at::equal(before, kept)) << "the same draws again";
        before = kept;
      }
      for (size_t i : {1, 0, 2}) {
        const auto expected = gradients(plain[i]), found = gradients(replayed[i]);
        for (size_t k = 0; k < 2; ++k) {
          const double tolerance = type == at::kFloat ? 1e-5 : 1e-2;
          EXPECT_TRUE(at::allclose(expected[k], found[k], tolerance, 1e-5)) << step << i << k;
        }
      }
    }
    EXPECT_TRUE(captured.captures());
    EXPECT_EQ(captured.passes(), 3U);
  }
}

// What a capture that CUDA refuses leaves behind is nothing: draws go on, memory comes back.
TEST_F(GpuCapture, ACaptureThatFailsHalfWayLeavesPlainRunsAsTheyWere) {
  const Net net = drawing_net();
  const at::Tensor x = random({2, 4, 32, 16}), w = random({2, 4, 32, 16});
  RunContext context;
  context.seed = 3;
  const at::Tensor before = must(net.program.run({x, w}, context)).outputs[1].toTensor();
  const auto space = GraphSpace::make(kCard);
  EXPECT_ANY_THROW(space->capture(1, [&](const GraphSpace::Draw& draw) {
    draw([&] { at::native_dropout(x, 0.5, true); });
    x.sum().item<float>();  // waits for the card
  }));
  const at::Tensor after = must(net.program.run({x, w}, context)).outputs[1].toTensor();
  EXPECT_TRUE(at::equal(before, after));
  // A failed capture must not keep what other streams have used.
  const auto transfer = Transfer::make(kCard);
  const auto reserved_bytes = [] {
    const auto stats = at::getDeviceAllocator(at::kCUDA)->getDeviceStats(kCard.index());
    return stats.reserved_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
        .current;
  };
  const at::Tensor host = at::ones({int64_t{1} << 24});
  transfer->to_device(host);
  const int64_t reserved = reserved_bytes();
  for (int i = 0; i < 50; ++i) {
    const double sum = transfer->to_device(host).sum().item<double>();
    EXPECT_EQ(sum, 1 << 24);
  }
  EXPECT_LT(reserved_bytes() - reserved, int64_t{5} << 26);
  // And another capture works.
  CapturedProgram captured(net.program, kCard, {false, true});
  for (int i = 0; i < 4; ++i) {
    const auto values = must(captured.run({x.clone(), w}, context));
    EXPECT_TRUE(at::equal(values.outputs[1].toTensor(), before));
  }
  EXPECT_TRUE(captured.captures());
}

// cuBLAS' workspace is 32 MiB on Hopper: one for plain runs and all passes.
TEST_F(GpuCapture, PlainRunsAndPassesShareOneWorkspace) {
  const auto allocated_bytes = [] {
    const auto stats = at::getDeviceAllocator(at::kCUDA)->getDeviceStats(kCard.index());
    return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
        .current;
  };
  const Net net = small_net();
  CapturedProgram captured(net.program, kCard, {false, true});
  const at::Tensor x = random({4, 8}), w = random({8, 8});
  allocate_workspace(kCard);
  const int64_t before = allocated_bytes();
  const auto added_bytes = [&] { return allocated_bytes() - before; };
  for (int plain = 0; plain < 2; ++plain) gradients(must(captured.run({x, w}, {})));
  EXPECT_LT(added_bytes(), 1 << 20);
  std::vector<Program::Values> in_flight;
  for (int i = 0; i < 4; ++i) in_flight.push_back(must(captured.run({x, w}, {})));
  for (Program::Values& values : in_flight) gradients(values);
  EXPECT_EQ(captured.passes(), 4U);
  EXPECT_LT(added_bytes(), 1 << 20);
  // Plain and captured runs in turn write the same workspace and nothing of each other's.
  const auto wanted = gradients(must(net.program.run({x, w}, {})));
  for (int i = 0; i < 3; ++i) {
    expect_equal(gradients(must(captured.run({x, w}, {}))), wanted);
    expect_equal(gradients(must(net.program.run({x, w}, {}))), wanted);
  }
  EXPECT_LT(added_bytes(), 1 << 20);
}

opdag::Graph statistics_net() {
  GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto h = b.linear(x, "w0", 8);
  const auto y = b.op("aten::batch_norm",
                      {{"input", opdag::ValueArg{h}},
                       {"weight", opdag::ValueArg{b.parameter("scale", {8})}},
                       {"bias", opdag::ValueArg{b.parameter("shift", {8})}},
                       {"running_mean", opdag::ValueArg{b.buffer("mean", {8})}},
                       {"running_var", opdag::ValueArg{b.buffer("var", {8})}},
                       {"training", true},
                       {"momentum", 0.1},
                       {"eps", 1e-5},
                       {"cudnn_enabled", false}},
                      {4, 8});
  b.loss(b.mean(b.tanh(b.linear(b.relu(y), "w1", 8))));
  for (const char* name : {"batches", "twice"}) {
    const auto count = b.buffer(name, {}, DType::kInt64);
    b.graph.leaves.back().persistent = true;
    b.graph.buffer_updates.push_back(
        {name, b.op("aten::add.Tensor", {{"self", opdag::ValueArg{count}}, {"other", int64_t{1}}},
                    {}, DType::kInt64)});
  }
  return must(b.build());
}

TEST_F(GpuCapture, TrainingIsTheSameWithAndWithout) {
  for (const opdag::Graph& graph : {must(opdag::testing::tied_skip_graph()), statistics_net()}) {
    const opdag::Graph wide = must(opdag::promote_f64(graph));
    const auto cut = must(
        opdag::split_contiguous(wide, std::vector<double>(opdag::cut_units(wide).size(), 1.0), 2));
    for (const opdag::Partition& partition : {one_stage(wide), cut}) {
      for (const auto& [micro_batches, schedule] : {std::pair{1, job::PipelineSchedule::k1F1B},
                                                    {4, job::PipelineSchedule::k1F1B},
                                                    {1, job::PipelineSchedule::kZbH1},
                                                    {4, job::PipelineSchedule::kZbH1}}) {
        ClusterOptions options = cluster_options(partition);
        options.runtime.micro_batches = micro_batches;
        options.runtime.plan.schedule = schedule;
        options.runtime.device = "cuda:0";
        options.runtime.train.clip_norm = 0.5;
        options.runtime.capture = false;
        const Trained plain = train(wide, options, 7);
        options.runtime.capture = true;
        const Trained captured = train(wide, options, 7);
        if (plain.state.contains("batches")) {
          const auto batches = captured.state.at("batches").item<int64_t>();
          EXPECT_EQ(batches, int64_t{7} * micro_batches);
        }
        for (auto& stage : options.runtime.plan.stages) stage.recompute = true;
        const Trained again = train(wide, options, 7);
        for (size_t i = 0; i < plain.losses.size(); ++i) {
          EXPECT_NEAR(plain.losses[i], captured.losses[i], 1e-11) << partition.stages;
          EXPECT_NEAR(plain.norms[i], captured.norms[i], 1e-11);
          EXPECT_NEAR(plain.losses[i], again.losses[i], 1e-11) << partition.stages;
          EXPECT_NEAR(plain.norms[i], again.norms[i], 1e-11);
        }
        for (const auto& [name, tensor] : plain.state) {
          EXPECT_TRUE(at::allclose(tensor, captured.state.at(name), 1e-10, 1e-11)) << name;
          EXPECT_TRUE(at::allclose(tensor, again.state.at(name), 1e-10, 1e-11)) << name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::executor::testing
