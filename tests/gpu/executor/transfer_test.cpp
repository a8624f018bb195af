// Copies between a card and the host: right bytes whatever the layout, no source reused too early,
// no wait for the card.

#include "executor/message_tensor.h"
#include "tests/gpu/executor/card.h"
#include "tests/support/exported_models.h"

namespace weft::executor::testing {
namespace {

const at::Device kCard(at::kCUDA, 0);

class GpuTransfer : public OnCard<> {
 protected:
  void SetUp() override {
    OnCard::SetUp();
    if (IsSkipped()) return;
    transfer_ = Transfer::make(kCard);
  }
  void finish() {
    const auto mark = transfer_->mark();
    while (!mark->passed()) continue;
  }
  std::unique_ptr<Transfer> transfer_;
};

ExpectedTensor like(const at::Tensor& tensor) {
  opdag::TensorMeta meta;
  meta.sizes = tensor.sizes().vec();
  meta.strides = tensor.strides().vec();
  return expected_tensor(meta, false);
}

TEST_F(GpuTransfer, MessagesKeepValuesAndStrides) {
  const at::Tensor base = at::randn({4, 6, 8}, at::device(kCard));
  const std::vector<at::Tensor> tensors = {base,
                                           base.permute({2, 0, 1}),
                                           base.slice(0, 1, 3),
                                           base.slice(2, 2, 6),
                                           base.slice(1, 0, 6, 2).transpose(0, 2),
                                           base.select(1, 0).unsqueeze(1).expand({4, 7, 8}),
                                           at::randn({}, at::device(kCard)),
                                           at::empty({0, 3}, at::device(kCard))};
  for (const at::Tensor& tensor : tensors) {
    const net::Message message = must(encode_tensor({}, tensor, *transfer_));
    finish();
    const auto back = must(decode_tensor(message, like(tensor), *transfer_));
    EXPECT_EQ(back->device(), kCard);
    EXPECT_TRUE(at::equal(*back, tensor));
    EXPECT_EQ(back->strides(), tensor.strides());
  }
  const at::Tensor turned = at::randn({8, 6, 4}, at::device(kCard)).permute({2, 1, 0});
  const net::Message bundle = must(encode_bundle({}, {base, std::nullopt, turned}, *transfer_));
  finish();
  const OptionalTensors back = must(decode_bundle(bundle, 3, like(base), *transfer_));
  EXPECT_TRUE(at::equal(*back[0], base) && !back[1] && at::equal(*back[2], turned));
}

// The compute stream is kept busy, each source dropped at once and its memory asked for again.
TEST_F(GpuTransfer, SourcesAreNotReusedBeforeTheirCopyEnds) {
  const at::Tensor busy = at::randn({4096, 4096}, at::device(kCard));
  std::vector<net::Message> messages;
  for (int i = 0; i < 50; ++i) {
    at::matmul(busy, busy);
    {
      const at::Tensor source = at::full({1 << 20}, i, at::device(kCard).dtype(at::kFloat));
      messages.push_back(must(encode_tensor({}, source, *transfer_)));
    }
    at::full({1 << 20}, -1, at::device(kCard).dtype(at::kFloat));
  }
  finish();
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto* data = reinterpret_cast<const float*>(messages[i].bytes.data());
    EXPECT_EQ(data[0], static_cast<float>(i));
    EXPECT_EQ(data[(1 << 20) - 1], static_cast<float>(i));
  }
}

// A received tensor is read by work queued at once, dropped, and its memory taken by the next copy.
TEST_F(GpuTransfer, ReceivedTensorsAreNotReusedBeforeTheyAreRead) {
  const at::Tensor busy = at::randn({4096, 4096}, at::device(kCard));
  std::vector<at::Tensor> read;
  for (int i = 0; i < 50; ++i) {
    at::matmul(busy, busy);
    const at::Tensor moved = transfer_->to_device(at::full({1 << 20}, i, at::kFloat));
    read.push_back(moved + 1);
  }
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_TRUE(read[i].eq(static_cast<double>(i) + 1).all().item<bool>()) << i;
  }
}

TEST_F(GpuTransfer, NothingWaitsForTheCard) {
  const at::Tensor busy = at::randn({8192, 8192}, at::device(kCard));
  must(encode_tensor({}, busy, *transfer_));  // making pinned memory may wait; it is kept
  transfer_->to_device(at::ones({1 << 20}));
  finish();
  at::Tensor product = busy;
  for (int i = 0; i < 50; ++i) product = at::matmul(busy, product);
  const net::Message message = must(encode_tensor({}, product, *transfer_));
  transfer_->to_device(at::ones({1 << 20}));
  EXPECT_FALSE(transfer_->mark()->passed()) << "fifty products are done already";
}

}  // namespace
}  // namespace weft::executor::testing
