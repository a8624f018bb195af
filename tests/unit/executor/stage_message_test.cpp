#include <gtest/gtest.h>

#include "base/rng.h"
#include "executor/message_tensor.h"

namespace weft::executor {
namespace {

net::MessageKey some_key() {
  net::MessageKey key;
  key.kind = net::MessageKind::kActivation;
  return key;
}

ExpectedTensor like(const at::Tensor& tensor, DType dtype = DType::kFloat32) {
  opdag::TensorMeta meta;
  meta.dtype = dtype;
  meta.sizes = tensor.sizes().vec();
  meta.strides = tensor.strides().vec();
  return expected_tensor(meta, false);
}

void expect_round_trip(const at::Tensor& tensor) {
  auto message = encode_tensor(some_key(), tensor, host_transfer());
  ASSERT_TRUE(message.ok());
  auto back = decode_tensor(*message, like(tensor), host_transfer());
  ASSERT_TRUE(back.ok()) << back.error().text();
  EXPECT_TRUE(at::equal(**back, tensor));
  EXPECT_EQ((*back)->strides(), tensor.strides());
}

TEST(StageMessage, StridesAreRestored) {
  const at::Tensor base = at::randn({4, 6, 8});
  expect_round_trip(base);
  expect_round_trip(base.permute({2, 0, 1}));
  expect_round_trip(base.slice(0, 1, 3));
  expect_round_trip(base.slice(2, 2, 6));  // gaps
  expect_round_trip(base.slice(1, 0, 6, 2).transpose(0, 2));
  expect_round_trip(at::randn({1, 8}).expand({5, 8}));  // repetition
  expect_round_trip(at::randn({}).expand({3, 4}));
  expect_round_trip(base.select(1, 0).unsqueeze(1).expand({4, 7, 8}));
  expect_round_trip(at::randn({}));
  expect_round_trip(at::randn({0, 3}));
  expect_round_trip(at::randn({20}).unfold(0, 5, 2));  // windows that overlap
}

TEST(StageMessage, DenseTensorsAreSentWithoutACopy) {
  const at::Tensor tensor = at::randn({4, 8}).t();
  auto message = encode_tensor(some_key(), tensor, host_transfer());
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(static_cast<const void*>(message->bytes.data()), tensor.const_data_ptr());
  const at::Tensor wide = at::randn({1, 1}).expand({1000, 1000});
  auto small = encode_tensor(some_key(), wide, host_transfer());
  ASSERT_TRUE(small.ok());
  EXPECT_EQ(small->bytes.size(), 4u);
}

TEST(StageMessage, BundlesKeepEachTensorApart) {
  const at::Tensor a = at::randn({3, 4}), b = at::randn({4, 3}).t();
  for (const OptionalTensors& sent :
       {OptionalTensors{a, std::nullopt, b}, OptionalTensors{a}, OptionalTensors{std::nullopt},
        OptionalTensors{std::nullopt, std::nullopt}}) {
    auto message = encode_bundle(some_key(), sent, host_transfer());
    ASSERT_TRUE(message.ok());
    auto back = decode_bundle(*message, sent.size(), like(a), host_transfer());
    ASSERT_TRUE(back.ok()) << back.error().text();
    ASSERT_EQ(back->size(), sent.size());
    for (size_t i = 0; i < sent.size(); ++i) {
      ASSERT_EQ((*back)[i].has_value(), sent[i].has_value());
      if (!sent[i]) continue;
      EXPECT_TRUE(at::equal(*(*back)[i], *sent[i]));
      EXPECT_EQ((*back)[i]->strides(), sent[i]->strides());
    }
  }
}

TEST(StageMessage, HostileMessagesAreRefused) {
  const at::Tensor tensor = at::randn({4, 6});
  const net::Message good = *encode_tensor(some_key(), tensor, host_transfer());
  const auto refused = [&](auto change) {
    net::Message bad = good;
    change(bad);
    return !decode_tensor(bad, like(tensor), host_transfer()).ok();
  };
  EXPECT_TRUE(refused([](auto& m) { m.sizes = {6, 4}; }));
  EXPECT_TRUE(refused([](auto& m) { m.sizes = {int64_t{1} << 40, 6}; }));
  EXPECT_TRUE(refused([](auto& m) { m.strides = {int64_t{1} << 60, 1}; }));
  EXPECT_TRUE(refused([](auto& m) { m.strides = {-6, 1}; }));
  EXPECT_TRUE(refused([](auto& m) { m.strides = {6}; }));
  EXPECT_TRUE(refused([](auto& m) { m.strides = {0, 1}; }));
  EXPECT_TRUE(refused([](auto& m) { m.dtype = DType::kInt64; }));
  EXPECT_TRUE(refused([](auto& m) { m.bytes = Buffer(std::vector<std::byte>(95)); }));
  const net::Message bundle = *encode_bundle(some_key(), {tensor, tensor}, host_transfer());
  Rng rng(1);
  for (int i = 0; i < 300; ++i) {  // any bytes give a value or an error, never a crash
    std::vector<std::byte> bytes(bundle.bytes.data(), bundle.bytes.data() + bundle.bytes.size());
    bytes[rng.below(64)] = static_cast<std::byte>(rng.below(256));
    if (rng.below(2) == 0) bytes.resize(rng.below(bytes.size()));
    net::Message bad = bundle;
    bad.bytes = Buffer(std::move(bytes));
    (void)decode_bundle(bad, 2, like(tensor), host_transfer());
  }
}

}  // namespace
}  // namespace weft::executor
