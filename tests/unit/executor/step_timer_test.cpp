// Steps timed on a device that works behind its host: what is told, and when.
#include "executor/step_timer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/unit/executor/runtime_support.h"

namespace weft::executor::testing {
namespace {

// A device that has one thing to do after the other and begins at once where it has nothing.
class Device {
 public:
  void queue(double seconds) { free_s_ = std::max(free_s_, now_s) + seconds; }
  double behind_all() const { return std::max(free_s_, now_s); }
  Moment::Make moments() {
    return [this] {
      ++made;
      return std::make_unique<At>(*this);
    };
  }
  double now_s = 0;
  int made = 0;

 private:
  class At final : public Moment {
   public:
    explicit At(const Device& device) : device_(device) {}
    void mark() override { at_s_ = device_.behind_all(); }
    bool passed() override { return device_.now_s >= at_s_; }
    double seconds_since(const Moment& earlier) const override {
      const auto& before = static_cast<const At&>(earlier);
      EXPECT_LE(at_s_, device_.now_s);
      return at_s_ - before.at_s_;
    }

   private:
    const Device& device_;
    double at_s_ = 0;
  };
  double free_s_ = 0;
};

RC_GTEST_PROP(StepTimer, EveryStepIsToldOnceAndAsLongAsItsActions, ()) {
  Rng rng(*rc::gen::arbitrary<uint32_t>());
  Device device;
  StepTimer timer(device.moments());
  std::vector<std::pair<double, double>> due;  // when the device is done, seconds
  const bool slow = rng.below(2) == 0;         // it falls behind its host
  for (int step = 0; step < 40; ++step) {
    timer.begin_step();
    double seconds = 0;
    for (uint64_t action = 0, actions = 1 + rng.below(6); action < actions; ++action) {
      for (uint64_t waits = rng.below(3); waits > 0; --waits) {
        timer.begin_action();
        device.now_s += rng.uniform();
      }
      timer.begin_action();
      const double before = device.behind_all();
      const double host_s = 0.1 * rng.uniform();
      device.queue((slow ? 2 : 0.05) * rng.uniform());
      device.now_s += host_s;  // it launched while the device worked
      timer.end_action();
      seconds += device.behind_all() - before;
    }
    if (rng.below(5) == 0) continue;  // forgotten
    timer.end_step();
    due.emplace_back(device.behind_all(), seconds);
    const double told = timer.take_seconds();
    double expected = 0;
    while (!due.empty() && due.front().first <= device.now_s) {
      expected = due.front().second;
      due.erase(due.begin());
    }
    RC_ASSERT(std::abs(told - expected) < 1e-9);
    RC_ASSERT(timer.take_seconds() == 0);
  }
  device.now_s = device.behind_all();
  RC_ASSERT(std::abs(timer.take_seconds() - (due.empty() ? 0 : due.back().second)) < 1e-9);
  RC_ASSERT(slow || device.made <= 4 * 2 * 6);  // they are used again
}

TEST(StepTimer, OnTheHostAStepIsToldAtItsEnd) {
  const opdag::Graph graph = must(opdag::promote_f64(must(opdag::testing::chain_graph(3))));
  RandomFeed feed(graph);
  auto cluster = must(
      LocalCluster::make(graph, graph, cluster_options(one_stage(graph)), random_weights(), feed));
  for (int step = 0; step < 3; ++step) {
    const StepResult told = must(cluster->step(step));
    EXPECT_GT(told.compute_s, 0);
    EXPECT_LE(told.compute_s, told.busy_s);
    EXPECT_GT(told.compute_s, 0.2 * told.busy_s);
    EXPECT_EQ(must(cluster->evaluate(step, 2)).compute_s, 0) << "an evaluation is no step";
  }
}

// A stage that leaves its device a step behind tells the step before; evaluations do not count.
TEST(StepTimer, AStageTellsWhatItsDeviceIsDoneWith) {
  const opdag::Graph graph = must(opdag::promote_f64(must(opdag::testing::chain_graph(2))));
  Device device;
  ClusterOptions options = cluster_options(one_stage(graph));
  options.runtime.moments = [&](at::Device) { return device.moments(); };
  // Seconds the device needs for a micro-batch of each step: it gets them with the input.
  class Loading final : public Feed {
   public:
    Loading(const opdag::Graph& graph, Device& device) : plain_(graph), device_(device) {}
    Result<at::Tensor> input(const std::string& name, Split split, int64_t step,
                             int32_t micro_batch) override {
      device_.queue(split == Split::kTrain ? static_cast<double>(1 + step) : 100);
      return plain_.input(name, split, step, micro_batch);
    }
    int32_t eval_micro_batches() const override { return 2; }

   private:
    RandomFeed plain_;
    Device& device_;
  } feed(graph, device);
  auto cluster = must(LocalCluster::make(graph, graph, options, random_weights(), feed));
  const int micro_batches = options.runtime.micro_batches;
  EXPECT_EQ(must(cluster->step(0)).compute_s, 0);
  EXPECT_EQ(must(cluster->step(1)).compute_s, 0);
  device.now_s = device.behind_all();
  must(cluster->evaluate(0, 2));
  EXPECT_EQ(must(cluster->step(2)).compute_s, 2 * micro_batches);
  device.now_s = device.behind_all();
  EXPECT_EQ(must(cluster->step(3)).compute_s, 3 * micro_batches);
}

}  // namespace
}  // namespace weft::executor::testing
