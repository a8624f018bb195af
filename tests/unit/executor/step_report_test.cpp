#include "executor/step_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "executor/message_tensor.h"
#include "tests/support/must.h"

namespace weft::executor {
namespace {

using testing::must;

constexpr size_t kLeaves = 9;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

net::MessageKey some_key(net::MessageKind kind) {
  net::MessageKey key;
  key.kind = kind;
  return key;
}

net::Message row(const std::vector<double>& numbers) {
  return must(encode_tensor(some_key(net::MessageKind::kNorms), at::tensor(numbers, at::kDouble),
                            host_transfer()));
}

bool report_refused(const std::vector<double>& numbers, float scale = 4) {
  const auto report = decode_report(row(numbers), scale, kLeaves);
  return !report.ok() && report.error().code == Code::kCorrupt;
}

TEST(StepReport, RoundTrips) {
  const StageReport sent{4, true, {{0, 1.5}, {7, kInf}, {8, kNan}}};
  const auto message = must(encode_report(some_key(net::MessageKind::kNorms), sent));
  const StageReport got = must(decode_report(message, 4, kLeaves));
  EXPECT_EQ(got.scale, 4);
  EXPECT_TRUE(got.overflow);
  ASSERT_EQ(got.squares.size(), 3u);
  EXPECT_EQ(got.squares[1], sent.squares[1]);
  EXPECT_TRUE(std::isnan(got.squares[2].second));
  EXPECT_TRUE(decode_report(row({0, 0}), 0, kLeaves).ok());
}

TEST(StepReport, HostileReportsAreRefused) {
  EXPECT_FALSE(report_refused({4, 0, 3, 1}));
  EXPECT_TRUE(report_refused({}));
  EXPECT_TRUE(report_refused({4}));
  EXPECT_TRUE(report_refused({4, 0, 3}));
  EXPECT_TRUE(report_refused({2, 0}));
  EXPECT_TRUE(report_refused({kNan, 0}));
  EXPECT_TRUE(report_refused({4, 0.5}));
  EXPECT_TRUE(report_refused({4, kNan}));
  EXPECT_TRUE(report_refused({0, 1}, 0)) << "overflow without scaling";
  for (const double id : {-1.0, 0.5, 9.0, 1e300, kNan, kInf}) {
    EXPECT_TRUE(report_refused({4, 0, id, 1})) << id;
  }
  EXPECT_TRUE(report_refused({4, 0, 3, 1, 3, 1})) << "a weight twice";
  EXPECT_TRUE(report_refused({4, 0, 3, 1, 2, 1})) << "out of order";
  EXPECT_TRUE(report_refused({4, 0, 3, -1}));
  EXPECT_TRUE(report_refused(std::vector<double>(2 + 2 * kLeaves + 2, 4)));
  net::Message none;
  none.none = true;
  EXPECT_FALSE(decode_report(none, 4, kLeaves).ok());
  const auto square = at::zeros({2, 2}, at::kDouble);
  EXPECT_FALSE(decode_report(must(encode_tensor({}, square, host_transfer())), 4, kLeaves).ok());
  const auto narrow = at::zeros({2}, at::kFloat);
  EXPECT_FALSE(decode_report(must(encode_tensor({}, narrow, host_transfer())), 0, kLeaves).ok());
}

TEST(StepReport, RepeatedNumbersOfAStrideOfZeroAreReadAsSent) {
  const at::Tensor wide = at::zeros({1}, at::kDouble).expand({2});
  EXPECT_TRUE(decode_report(must(encode_tensor({}, wide, host_transfer())), 0, kLeaves).ok());
}

TEST(StepReport, JudgesOverAllStages) {
  const LossScaler scaler({1024, 2, 0.5, 1});
  const StageReport calm{1024, false, {{1, 9}}}, hot{1024, true, {{0, 16}}};
  const StepVerdict apart = must(judge({calm, {1024, false, {{0, 16}}}}, true, &scaler));
  EXPECT_EQ(apart.norm, 5);
  EXPECT_TRUE(apart.apply);
  EXPECT_EQ(apart.next, (LossScale{2048, 0, 0}));
  const StepVerdict skip = must(judge({calm, hot}, false, &scaler));
  EXPECT_EQ(skip.norm, -1);
  EXPECT_FALSE(skip.apply);
  EXPECT_EQ(skip.next, (LossScale{512, 0, 1}));
  EXPECT_TRUE(must(judge({calm}, true, nullptr)).apply);
}

TEST(StepVerdict, RoundTripsAndHostileOnesAreRefused) {
  const LossScaler scaler({1024, 2, 0.5, 5});
  const auto key = some_key(net::MessageKind::kClip);
  for (const bool apply : {true, false}) {
    const StepVerdict sent{2.5, apply, must(scaler.after(!apply))};
    const auto got = must(decode_verdict(must(encode_verdict(key, sent)), true, &scaler));
    EXPECT_EQ(got.norm, 2.5);
    EXPECT_EQ(got.apply, apply);
    EXPECT_EQ(got.next, sent.next);
  }
  EXPECT_TRUE(decode_verdict(row({kNan, 1, 0, 0, 0}), true, nullptr).ok());
  EXPECT_TRUE(decode_verdict(row({-1, 1, 1024, 1, 0}), false, &scaler).ok());
  const auto refused = [&](const std::vector<double>& numbers, bool clips, const LossScaler* with) {
    return !decode_verdict(row(numbers), clips, with).ok();
  };
  EXPECT_TRUE(refused({1, 1, 0, 0}, true, nullptr));
  EXPECT_TRUE(refused({-1, 1, 0, 0, 0}, true, nullptr));
  EXPECT_TRUE(refused({1, 1, 0, 0, 0}, false, nullptr));
  EXPECT_TRUE(refused({1, 0, 0, 0, 0}, true, nullptr)) << "a skip without scaling";
  EXPECT_TRUE(refused({1, 2, 1024, 1, 0}, true, &scaler));
  for (const double bad : {512.0, kNan, kInf, -1024.0}) {
    EXPECT_TRUE(refused({1, 1, bad, 1, 0}, true, &scaler)) << bad;
    EXPECT_TRUE(refused({1, 1, 1024, bad, 0}, true, &scaler)) << bad;
    EXPECT_TRUE(refused({1, 1, 1024, 1, bad}, true, &scaler)) << bad;
  }
}

TEST(StepVerdict, AnyBytesGiveAValueOrAnError) {
  const LossScaler scaler({});
  Rng rng(3);
  for (int i = 0; i < 500; ++i) {
    net::Message message = row(std::vector<double>(1 + rng.below(8)));
    std::vector<std::byte> bytes(message.bytes.size());
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
    message.bytes = Buffer(std::move(bytes));
    EXPECT_FALSE(decode_verdict(message, true, &scaler).ok());
    EXPECT_FALSE(decode_report(message, 65536, kLeaves).ok());
  }
}

}  // namespace
}  // namespace weft::executor
