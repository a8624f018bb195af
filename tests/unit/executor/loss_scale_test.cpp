#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>

#include "executor/loss_scaler.h"
#include "tests/unit/executor/runtime_support.h"

namespace weft::executor::testing {
namespace {

TEST(LossScaler, MovesAsTorchDoes) {
  for (const job::LossScaleSpec& spec :
       {job::LossScaleSpec{65536, 2, 0.5, 3}, job::LossScaleSpec{1000, 1.3, 0.7, 1},
        job::LossScaleSpec{1e38, 10, 0.9, 2}}) {
    LossScaler scaler(spec);
    at::Tensor scale = at::full({}, spec.init, at::kFloat), good = at::zeros({}, at::kInt);
    Rng rng(7);
    for (int step = 0; step < 200; ++step) {
      const bool overflow = rng.below(4) == 0;
      at::_amp_update_scale_(scale, good, at::full({}, overflow ? 1.0 : 0.0, at::kFloat),
                             spec.growth_factor, spec.backoff_factor, spec.growth_interval);
      scaler.set(must(scaler.after(overflow)));
      ASSERT_EQ(scaler.now().scale, scale.item<float>()) << step;
      ASSERT_EQ(scaler.now().good_steps, good.item<int>()) << step;
    }
  }
}

TEST(LossScaler, AScaleThatFellToZeroIsAnError) {
  LossScaler scaler({1, 2, 0.5, 1});
  for (int step = 0; step < 149; ++step) scaler.set(must(scaler.after(true)));
  const auto next = scaler.after(true);
  ASSERT_FALSE(next.ok());
  EXPECT_NE(next.error().message.find("every loss scale"), std::string::npos);
}

TEST(LossScaler, StateRoundTripsAndIsChecked) {
  LossScaler scaler({});
  scaler.set({0.125F, 12, 3});
  LossScaler other({});
  ASSERT_TRUE(other.load_state(scaler.state()).ok());
  EXPECT_EQ(other.now(), scaler.now());
  ASSERT_TRUE(other.load_state({}).ok());
  EXPECT_EQ(other.now(), scaler.now());
  for (const char* name : {"scale", "good_steps", "skipped_steps"}) {
    const std::string key = std::string("weft.loss_scaler.") + name;
    auto state = scaler.state();
    state.erase(key);
    EXPECT_FALSE(other.load_state(state).ok()) << "without " << name;
    for (const double value : {-1.0, std::nan(""), 1e300}) {
      state[key] = at::full({}, value, at::kDouble);
      EXPECT_FALSE(other.load_state(state).ok()) << name << " " << value;
    }
    state[key] = at::ones({2});
    EXPECT_FALSE(other.load_state(state).ok()) << name;
  }
  EXPECT_EQ(other.now(), scaler.now());
}

TEST(LossScaler, UnscaleFindsInfAndNanOfEveryKind) {
  const auto overflow = [](const at::Tensor& bad) {
    const at::Tensor good = at::full({3, 2}, 8.0).t();
    const double found = unscale({good, bad}, 4, at::kCPU).item<double>();
    EXPECT_TRUE(good.eq(2).all().item<bool>());
    return found;
  };
  const at::Tensor complex = at::ones({2}, at::kComplexFloat);
  EXPECT_EQ(overflow(at::ones({4}, at::kDouble)), 0);
  EXPECT_EQ(overflow(complex), 0);
  EXPECT_EQ(overflow(at::empty({0})), 0);
  EXPECT_EQ(overflow(at::full({4}, INFINITY)), 1);
  EXPECT_EQ(overflow(at::full({4}, NAN, at::kDouble)), 1);
  EXPECT_EQ(overflow(at::full({4}, -INFINITY, at::kHalf)), 1);
  EXPECT_EQ(overflow(complex * INFINITY), 1);
  EXPECT_EQ(unscale({}, 4, at::kCPU).item<double>(), 0);
}

class AutocastHalf {
 public:
  AutocastHalf() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~AutocastHalf() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_cache_enabled(true);
  }
};

ClusterOptions fp16_options(const opdag::Partition& partition, uint64_t seed = 0) {
  ClusterOptions options = cluster_options(partition, seed);
  options.runtime.train.precision = job::Precision::kFp16;
  // The mean of a half tensor is half: 65536 overflows, 32768 does not.
  options.runtime.train.loss_scale = {65536, 2, 0.5, 2};
  return options;
}

opdag::Partition even_cut(const opdag::Graph& graph, int32_t stages) {
  const std::vector<double> even(opdag::cut_units(graph).size(), 1.0);
  return must(opdag::split_contiguous(graph, even, stages));
}

// The loop a PyTorch user writes with torch.amp.GradScaler, in ATen's words.
TEST(Fp16, EqualsTheLoopOfAGradScaler) {
  const opdag::Graph graph = must(opdag::testing::chain_graph(3));
  ClusterOptions options = fp16_options(one_stage(graph));
  options.runtime.train.optimizer = job::Optimizer::kSgd;
  options.runtime.train.weight_decay = 0;
  options.runtime.train.lr = 2;
  options.runtime.train.clip_norm = 0.02;
  RandomFeed feed(graph);
  auto cluster = must(LocalCluster::make(graph, {}, options, random_weights(), feed));
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 3; ++i) {
    weights.push_back(cluster->state().at("w" + std::to_string(i)).clone().set_requires_grad(true));
  }
  at::Tensor scale = at::full({}, 65536.0), good = at::zeros({}, at::kInt);
  int skipped = 0;
  for (int64_t step = 0; step < 8; ++step) {
    std::vector<at::Tensor> gradients;
    double loss_sum = 0;
    for (int32_t m = 0; m < 3; ++m) {
      at::Tensor x = must(feed.input("x", Split::kTrain, step, m));
      const AutocastHalf autocast;
      for (const at::Tensor& weight : weights) x = at::tanh(at::linear(x, weight));
      const at::Tensor loss = x.mean();
      loss_sum += loss.item<double>();
      const auto found = torch::autograd::grad({(loss / 3) * scale}, weights);
      for (size_t i = 0; i < found.size(); ++i) {
        if (m == 0) gradients.push_back(found[i].clone());
        if (m > 0) gradients[i].add_(found[i]);
      }
    }
    at::Tensor found_inf = at::zeros({1});
    at::_amp_foreach_non_finite_check_and_unscale_(
        gradients, found_inf, scale.to(at::kDouble).reciprocal().to(at::kFloat));
    const float before = scale.item<float>();
    double norm = -1;
    if (found_inf.item<float>() == 0) {
      norm = 0;
      for (const at::Tensor& g : gradients) norm += g.to(at::kDouble).square().sum().item<double>();
      norm = std::sqrt(norm);
      const at::NoGradGuard guard;
      const double clip = std::min(1.0, 0.02 / (norm + 1e-6));
      for (size_t i = 0; i < 3; ++i) weights[i].sub_(gradients[i] * clip * 2);
    } else {
      ++skipped;
    }
    at::_amp_update_scale_(scale, good, found_inf, 2, 0.5, 2);

    const StepResult told = must(cluster->step(step));
    EXPECT_NEAR(told.loss, loss_sum / 3, 1e-12);
    EXPECT_EQ(told.loss_scale, before);
    EXPECT_EQ(told.skipped, norm < 0);
    EXPECT_EQ(told.skipped_steps, skipped);
    EXPECT_NEAR(told.grad_norm, norm, 1e-6 * std::abs(norm));
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::allclose(cluster->state().at("w" + std::to_string(i)),
                               weights[static_cast<size_t>(i)], 1e-6, 1e-7))
          << "weight " << i << " after step " << step;
    }
  }
  EXPECT_GE(skipped, 2) << "no step overflowed";
  EXPECT_LE(skipped, 6);
}

TEST(Fp16, AnyCutGivesTheSameBits) {
  const opdag::Graph graph = must(opdag::testing::tied_skip_graph());
  for (const double clip : {0.0, 0.01}) {
    ClusterOptions whole = fp16_options(one_stage(graph));
    whole.runtime.train.clip_norm = clip;
    const Trained expected = train(graph, whole, 6);
    for (int32_t stages = 2; stages <= 4; ++stages) {
      ClusterOptions parts = fp16_options(even_cut(graph, stages), 3);
      parts.runtime.train.clip_norm = clip;
      const Trained found = train(graph, parts, 6);
      EXPECT_EQ(found.losses, expected.losses);
      EXPECT_EQ(found.norms, expected.norms);
      expect_bitwise(expected.state, found.state);
    }
  }
  ClusterOptions exact = fp16_options(one_stage(graph));
  exact.runtime.train.precision = job::Precision::kFp32;
  exact.runtime.train.loss_scale = {};
  EXPECT_NE(train(graph, exact, 6).losses, train(graph, fp16_options(one_stage(graph)), 6).losses);
}

std::map<std::string, at::Tensor> copy_of(const LocalCluster& cluster) {
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : cluster.state()) state[name] = tensor.clone();
  return state;
}

TEST(Fp16, AnOverflowSkipsTheStepOnEveryStageAndHalvesTheScale) {
  const opdag::Graph graph = must(opdag::testing::tied_skip_graph());
  ClusterOptions options = fp16_options(even_cut(graph, 3));
  options.runtime.train.warmup_steps = 8;
  RandomFeed feed(graph);
  auto cluster = must(LocalCluster::make(graph, {}, options, random_weights(), feed));
  const auto before = copy_of(*cluster);
  const StepResult first = must(cluster->step(0));
  EXPECT_TRUE(first.skipped);
  EXPECT_EQ(first.loss_scale, 65536);
  for (int32_t stage = 0; stage < 3; ++stage) {
    const auto state = cluster->stage(stage).state();
    EXPECT_EQ(state.at("weft.loss_scaler.scale").item<float>(), 32768);
    EXPECT_EQ(state.at("weft.loss_scaler.skipped_steps").item<int64_t>(), 1);
  }
  for (const auto& [name, tensor] : copy_of(*cluster)) {
    if (name.starts_with("weft.loss_scaler.")) continue;
    ASSERT_TRUE(before.contains(name)) << name << ": the optimizer was called";
    EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
  }
  // The step after is the optimizer's first: its count and rate have not moved.
  EXPECT_FALSE(must(cluster->step(1)).skipped);
  EXPECT_EQ(cluster->state().at("weft.optimizer.step/w0").item<float>(), 1);
  ClusterOptions calm = options;
  calm.runtime.train.loss_scale.init = 32768;
  auto other = must(LocalCluster::make(graph, {}, calm, random_weights(), feed));
  must(other->step(1));  // the same samples, at the rate of step 1
  EXPECT_FALSE(at::equal(other->state().at("w0"), cluster->state().at("w0")));
  calm.runtime.train.warmup_steps = 4;
  calm.runtime.train.lr /= 4;  // (1 + 1) / 4 of a quarter is 1 / 8 of the whole: the rate of step 0
  auto same = must(LocalCluster::make(graph, {}, calm, random_weights(), feed));
  must(same->step(1));
  EXPECT_TRUE(at::allclose(same->state().at("w0"), cluster->state().at("w0"), 1e-6, 1e-7));
}

TEST(Fp16, TheScaleGrowsAfterGoodSteps) {
  const opdag::Graph graph = must(opdag::testing::chain_graph(2));
  ClusterOptions options = fp16_options(even_cut(graph, 2));
  options.runtime.train.loss_scale = {1024, 4, 0.5, 3};
  RandomFeed feed(graph);
  auto cluster = must(LocalCluster::make(graph, {}, options, random_weights(), feed));
  std::vector<double> scales;
  for (int step = 0; step < 7; ++step) scales.push_back(must(cluster->step(step)).loss_scale);
  EXPECT_EQ(scales, (std::vector<double>{1024, 1024, 1024, 4096, 4096, 4096, 16384}));
}

TEST(Fp16, AResumedJobKeepsItsBits) {
  const opdag::Graph graph = must(opdag::testing::tied_skip_graph());
  const Trained whole = train(graph, fp16_options(one_stage(graph)), 7);
  for (const int cut : {1, 2, 4}) {  // after a skipped step, and amid good ones
    const Trained first = train(graph, fp16_options(even_cut(graph, 3)), cut);
    RandomFeed feed(graph);
    auto cluster = must(
        LocalCluster::make(graph, {}, fp16_options(even_cut(graph, 2)), random_weights(99), feed));
    ASSERT_TRUE(cluster->load_state(first.state).ok());
    for (int step = cut; step < 7; ++step) must(cluster->step(step));
    expect_bitwise(whole.state, cluster->state());
  }
}

TEST(Fp16, StagesWithOtherScalesAreToldApart) {
  const opdag::Graph graph = must(opdag::testing::chain_graph(2));
  RandomFeed feed(graph);
  auto cluster =
      must(LocalCluster::make(graph, {}, fp16_options(even_cut(graph, 2)), random_weights(), feed));
  LossScaler other({});
  other.set({128, 0, 0});
  ASSERT_TRUE(cluster->stage(0).load_state(other.state()).ok());
  const auto told = cluster->step(0);
  ASSERT_FALSE(told.ok());
  EXPECT_NE(told.error().message.find("loss scale 128"), std::string::npos) << told.error().message;
}

}  // namespace
}  // namespace weft::executor::testing
