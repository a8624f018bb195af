// Copies that end late, as a card's do: nothing may be sent or read before.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>

#include "executor/message_tensor.h"
#include "tests/unit/executor/runtime_support.h"

namespace weft::executor::testing {
namespace {

// Host memory apart from the "device's", filled with NaN until its copy ends, which takes a seeded
// number of looks.
class LateTransfer final : public Transfer {
 public:
  explicit LateTransfer(uint64_t seed) : rng_(seed) {}

  at::Tensor host_bytes(int64_t size) override { return at::full({size}, 0xff, at::kByte); }
  at::Tensor to_host(const at::Tensor& dense) override {
    const at::Tensor bytes = host_bytes(static_cast<int64_t>(dense.nbytes()));
    copy_to_host(byte_row(dense), bytes);
    return bytes.view(dense.scalar_type()).as_strided(dense.sizes(), dense.strides());
  }
  void copy_to_host(const at::Tensor& row, const at::Tensor& host) override {
    copies_.emplace_back(row, host);
  }
  std::unique_ptr<Mark> mark() override {
    return std::make_unique<LateMark>(std::exchange(copies_, {}), rng_.below(4));
  }
  at::Tensor to_device(const at::Tensor& host) override {
    return at::empty_strided(host.sizes(), host.strides(), host.options()).copy_(host);
  }

 private:
  using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;
  class LateMark final : public Mark {
   public:
    LateMark(Copies copies, uint64_t looks) : copies_(std::move(copies)), looks_(looks) {}
    bool passed() override {
      if (looks_ > 0) {
        --looks_;
        return false;
      }
      for (const auto& [row, host] : std::exchange(copies_, {})) host.copy_(row);
      return true;
    }

   private:
    Copies copies_;
    uint64_t looks_;
  };

  Rng rng_;
  Copies copies_;
};

void copy_late(ClusterOptions& options, uint64_t seed) {
  options.runtime.transfer = [seed](at::Device) { return std::make_unique<LateTransfer>(seed); };
}

RC_GTEST_PROP(Transfer, CopiesThatEndLateChangeNoBit, ()) {
  const auto seed = *rc::gen::arbitrary<uint32_t>();
  Rng rng(seed);
  const auto made = opdag::testing::random_graph(rng, 12 + static_cast<int>(rng.below(16)));
  const opdag::Graph graph = must(opdag::promote_f64(must(opdag::prune_to(must(made), {}))));
  ClusterOptions whole = cluster_options(one_stage(graph));
  whole.runtime.train.clip_norm = rng.below(2) == 0 ? 0 : 0.05;
  const Trained expected = train(graph, whole, 2);
  const auto units = opdag::cut_units(graph).size();
  const auto stages = static_cast<int32_t>(1 + rng.below(std::min<size_t>(units, 4)));
  ClusterOptions parts = cluster_options(must(opdag::random_partition(graph, stages, rng)), seed);
  parts.runtime.train.clip_norm = whole.runtime.train.clip_norm;
  copy_late(parts, seed);
  const Trained found = train(graph, parts, 2);
  RC_ASSERT(found.losses == expected.losses);
  RC_ASSERT(found.norms == expected.norms);
  for (const auto& [name, tensor] : expected.state) {
    RC_ASSERT(at::equal(tensor, found.state.at(name)));
  }
}

TEST(Transfer, AStageIsDoneOnlyWhenItsCopiesAreSent) {
  const opdag::Graph graph = must(opdag::promote_f64(must(opdag::testing::tied_skip_graph())));
  const std::vector<double> even(opdag::cut_units(graph).size(), 1.0);
  ClusterOptions options = cluster_options(must(opdag::split_contiguous(graph, even, 2)));
  copy_late(options, 4);
  RandomFeed feed(graph);
  net::SimNetwork network(2, {});
  std::vector<std::unique_ptr<StageRuntime>> stages;
  for (int32_t i = 0; i < 2; ++i) {
    options.runtime.stage = i;
    stages.push_back(must(StageRuntime::make(graph, {}, options.runtime, random_weights(),
                                             network.endpoint(i), feed)));
    ASSERT_TRUE(stages.back()->begin_step(0).ok());
  }
  int copying = 0;
  std::vector<bool> done(2, false);
  for (int turn = 0; turn < 10000 && !(done[0] && done[1]); ++turn) {
    for (size_t i = 0; i < 2; ++i) {
      if (done[i]) continue;
      const Progress progress = must(stages[i]->advance());
      copying += progress == Progress::kCopying ? 1 : 0;
      done[i] = progress == Progress::kDone;
    }
    network.deliver_next();
  }
  EXPECT_TRUE(done[0] && done[1]);
  EXPECT_GT(copying, 0);
  EXPECT_TRUE(std::isnan(stages[0]->result().loss));  // the other stage's
  EXPECT_FALSE(std::isnan(stages[1]->result().loss));
}

TEST(Transfer, ABundleIsCopiedPartByPart) {
  LateTransfer late(1);
  const at::Tensor a = at::randn({3, 4}), b = at::randn({4, 3}).t().to(at::kDouble);
  net::MessageKey key;
  const OptionalTensors sent{a, std::nullopt, b};
  const net::Message message = must(encode_bundle(key, sent, late));
  const auto mark = late.mark();
  while (!mark->passed()) continue;
  const net::Message plain = must(encode_bundle(key, sent, host_transfer()));
  ASSERT_EQ(message.bytes.size(), plain.bytes.size());
  EXPECT_EQ(std::memcmp(message.bytes.data(), plain.bytes.data(), plain.bytes.size()), 0);
}

}  // namespace
}  // namespace weft::executor::testing
