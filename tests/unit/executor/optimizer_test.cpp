#include "executor/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace weft::executor {
namespace {

constexpr int kSteps = 20;

job::TrainSpec train_spec(job::Optimizer kind) {
  job::TrainSpec train;
  train.steps = kSteps;
  train.optimizer = kind;
  train.lr = 0.01;
  train.min_lr = 0.001;
  train.schedule = job::LrSchedule::kCosine;
  train.warmup_steps = 3;
  train.momentum = 0.9;
  train.weight_decay = 0.1;
  return train;
}

at::Tensor start(std::initializer_list<int64_t> sizes, double offset) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  at::Tensor value = at::sin(at::arange(count, at::kDouble) + offset).reshape(sizes).clone();
  return value.set_requires_grad(true);
}

// A gradient that changes with the step and the value; transposed, as linear layers leave them.
at::Tensor gradient_of(const at::Tensor& value, int64_t step) {
  at::NoGradGuard no_grad;
  at::Tensor gradient = at::cos(value * (1.0 + 0.1 * static_cast<double>(step)));
  if (gradient.dim() == 2) gradient = gradient.t().contiguous().t();
  return gradient;
}

// PyTorch's documented algorithms, one scalar tensor operation after the other.
struct Reference {
  job::TrainSpec train;
  double decay = 0;
  at::Tensor m, v, buffer;
  int64_t count = 0;

  void step(at::Tensor& p, at::Tensor g, int64_t step) {
    const double lr = job::lr_at(train, train.lr, step);
    ++count;
    if (train.optimizer == job::Optimizer::kAdamW) {
      p.mul_(1 - lr * decay);
    } else {
      g = g + p * decay;
    }
    if (train.optimizer == job::Optimizer::kSgd) {
      buffer = buffer.defined() ? buffer * train.momentum + g : g.clone();
      p.sub_(buffer * lr);
      return;
    }
    if (!m.defined()) m = at::zeros_like(p), v = at::zeros_like(p);
    m = m * train.beta1 + g * (1 - train.beta1);
    v = v * train.beta2 + g * g * (1 - train.beta2);
    const double c1 = 1 - std::pow(train.beta1, static_cast<double>(count));
    const double c2 = 1 - std::pow(train.beta2, static_cast<double>(count));
    p.sub_(lr / c1 * m / (v.sqrt() / std::sqrt(c2) + train.eps));
  }
};

std::vector<OwnedParameter> parameters() {
  return {{"layer.weight", start({3, 4}, 0.5)}, {"layer.bias", start({4}, 1.5)}};
}

std::unique_ptr<StageOptimizer> make(const job::TrainSpec& train,
                                     const std::vector<OwnedParameter>& owned,
                                     const std::vector<job::ParamGroup>& groups = {}) {
  auto made = StageOptimizer::make(train, groups, owned);
  EXPECT_TRUE(made.ok()) << made.error().text();
  return std::move(*made);
}

void run(StageOptimizer& optimizer, const std::vector<OwnedParameter>& owned, int64_t from,
         int64_t to) {
  for (int64_t step = from; step < to; ++step) {
    for (const OwnedParameter& parameter : owned) {
      at::Tensor value = parameter.value;
      value.mutable_grad() = gradient_of(value, step);
    }
    auto status = optimizer.step(step);
    ASSERT_TRUE(status.ok()) << status.error().text();
    for (const OwnedParameter& parameter : owned) EXPECT_FALSE(parameter.value.grad().defined());
  }
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach() - b.detach()).abs().max().item<double>();
}

class OptimizerKinds : public ::testing::TestWithParam<job::Optimizer> {};
INSTANTIATE_TEST_SUITE_P(All, OptimizerKinds,
                         ::testing::Values(job::Optimizer::kSgd, job::Optimizer::kAdam,
                                           job::Optimizer::kAdamW));

TEST_P(OptimizerKinds, EqualsTheFormulasOver20Steps) {
  const job::TrainSpec train = train_spec(GetParam());
  const auto owned = parameters();
  const auto optimizer = make(train, owned);
  run(*optimizer, owned, 0, kSteps);
  const auto expected = parameters();
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < owned.size(); ++i) {
    // No decay on the bias.
    Reference reference{train, i == 0 ? train.weight_decay : 0, {}, {}, {}};
    at::Tensor p = expected[i].value.detach();
    for (int64_t step = 0; step < kSteps; ++step) reference.step(p, gradient_of(p, step), step);
    EXPECT_LT(distance(p, owned[i].value), 1e-12) << owned[i].name;
  }
}

TEST_P(OptimizerKinds, ResumesExactly) {
  const job::TrainSpec train = train_spec(GetParam());
  const auto straight = parameters();
  const auto first = make(train, straight);
  run(*first, straight, 0, kSteps);

  const auto halves = parameters();
  const auto before = make(train, halves);
  run(*before, halves, 0, 7);
  std::map<std::string, at::Tensor> saved;
  for (const auto& [name, tensor] : before->state()) saved[name] = tensor.clone();
  EXPECT_FALSE(saved.empty());
  const auto after = make(train, halves);
  ASSERT_TRUE(after->load_state(saved).ok());
  run(*after, halves, 7, kSteps);
  for (size_t i = 0; i < straight.size(); ++i) {
    EXPECT_TRUE(straight[i].value.equal(halves[i].value)) << straight[i].name;
  }
}

TEST(Optimizer, GroupsSetRatesDecayAndFreezing) {
  job::TrainSpec train = train_spec(job::Optimizer::kSgd);
  train.momentum = 0;
  train.schedule = job::LrSchedule::kConstant;
  train.warmup_steps = 0;
  const std::vector<OwnedParameter> owned{
      {"a.weight", start({2, 2}, 0)}, {"b.bias", start({2}, 0)}, {"c.weight", start({2, 2}, 0)}};
  const auto before =
      std::vector<at::Tensor>{owned[0].value.detach().clone(), owned[1].value.detach().clone(),
                              owned[2].value.detach().clone()};
  job::ParamGroup frozen, fast;
  frozen.match = "a.*";
  frozen.frozen = true;
  fast.match = "*.bias";
  fast.lr = 0.5;
  fast.weight_decay = 0.25;
  const auto optimizer = make(train, owned, {frozen, fast});
  run(*optimizer, owned, 0, 0);
  for (const auto& parameter : owned) {
    at::Tensor value = parameter.value;
    value.mutable_grad() =
        at::ones_like(before[0]).reshape(-1).slice(0, 0, value.numel()).reshape(value.sizes());
  }
  ASSERT_TRUE(optimizer->step(0).ok());
  EXPECT_TRUE(owned[0].value.equal(before[0]));
  EXPECT_LT(distance(owned[1].value, before[1] - 0.5 * (1 + 0.25 * before[1])), 1e-15);
  EXPECT_LT(distance(owned[2].value, before[2] - 0.01 * (1 + 0.1 * before[2])), 1e-15);
}

TEST(Optimizer, ParametersWithoutAGradientStayAndDoNotCount) {
  const job::TrainSpec train = train_spec(job::Optimizer::kAdamW);
  const auto owned = parameters();
  const auto optimizer = make(train, owned);
  at::Tensor weight = owned[0].value;
  const at::Tensor bias = owned[1].value.detach().clone();
  weight.mutable_grad() = gradient_of(weight, 0);
  ASSERT_TRUE(optimizer->step(0).ok());
  EXPECT_TRUE(owned[1].value.equal(bias));
  EXPECT_EQ(optimizer->state().count("weft.optimizer.step/layer.weight"), 1u);
  EXPECT_EQ(optimizer->state().count("weft.optimizer.step/layer.bias"), 0u);
}

TEST(Optimizer, RefusesBadStateAndBadRates) {
  job::TrainSpec train = train_spec(job::Optimizer::kAdamW);
  const auto owned = parameters();
  const auto optimizer = make(train, owned);
  run(*optimizer, owned, 0, 1);
  auto state = optimizer->state();
  state["weft.optimizer.exp_avg/layer.weight"] = at::zeros({5});
  EXPECT_EQ(optimizer->load_state(state).error().code, Code::kInvalid);
  state.erase("weft.optimizer.exp_avg/layer.weight");
  EXPECT_EQ(optimizer->load_state(state).error().code, Code::kCorrupt);
  train.beta1 = 1;
  EXPECT_FALSE(StageOptimizer::make(train, {}, parameters()).ok());
}

}  // namespace
}  // namespace weft::executor
