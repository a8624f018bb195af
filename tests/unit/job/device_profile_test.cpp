#include "job/device_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/graph_builder.h"
#include "tests/support/must.h"

namespace weft::job {
namespace {

using executor::testing::must;
using nlohmann::json;
using ::testing::HasSubstr;

DeviceProfile profile() {
  DeviceProfile p;
  p.device = "cuda:0";
  p.device_name = "Card";
  p.version = "0.1.0";
  p.threads = 4;
  p.memory_total_bytes = 24ull << 30;
  p.memory_free_bytes = 20ull << 30;
  p.to_device_gbyte_s = 12;
  p.from_device_gbyte_s = 13;
  p.seconds = 3;
  for (MeasuredCosts* measured : {&p.fp32, &p.bf16}) {
    const double speed = measured == &p.bf16 ? 4 : 1;
    for (size_t i = 0; i < kOpClasses; ++i) {
      const double dear = static_cast<double>(i + 1) / speed;
      measured->costs[i] = {{1e-6 * dear, 1e-11 * dear, 1e-10 * dear},
                            {2e-6 * dear, 1.5e-11 * dear, 0}};
      measured->errors[i] = {0.05, 0.07, 9};
    }
  }
  return p;
}

std::string error_of(json changed) {
  const auto read = profile_from_json(changed);
  return read.ok() ? "" : read.error().message;
}

TEST(DeviceProfile, JsonKeepsWhatPlansNeed) {
  const DeviceProfile before = profile();
  const DeviceProfile after = must(profile_from_json(profile_to_json(before)));
  EXPECT_EQ(after.device_name, before.device_name);
  EXPECT_EQ(after.threads, 4);
  EXPECT_EQ(after.memory_free_bytes, before.memory_free_bytes);
  EXPECT_DOUBLE_EQ(after.from_device_gbyte_s, 13);
  for (size_t i = 0; i < kOpClasses; ++i) {
    const ClassCost &a = before.bf16.costs[i], &b = after.bf16.costs[i];
    EXPECT_NEAR(b.forward.byte_s, a.forward.byte_s, 1e-6 * a.forward.byte_s);
    EXPECT_NEAR(b.backward.flop_s, a.backward.flop_s, 1e-6 * a.backward.flop_s);
    EXPECT_EQ(b.backward.byte_s, 0) << "null: this term costs nothing";
    EXPECT_EQ(after.bf16.errors[i].samples, 9);
  }
  EXPECT_LT(profile_to_json(before).dump().size(), kMaxProfileBytes / 2);
}

// What fits make of noise: nothing, or a term a million times cheaper than any device, or dearer.
RC_GTEST_PROP(DeviceProfile, WhateverAFitGivesCanBeRead, ()) {
  DeviceProfile p = profile();
  const auto coefficient = [] {
    const int digits = *rc::gen::inRange(-34, 3);
    return digits < -30 ? 0 : std::pow(10, digits);
  };
  for (size_t i = 0; i < kOpClasses; ++i) {
    p.fp32.costs[i] = {{coefficient(), coefficient(), coefficient()},
                       {coefficient(), coefficient(), coefficient()}};
    p.fp32.errors[i] = {coefficient(), 1e9 * coefficient(), 3};
  }
  const auto read = profile_from_json(json::parse(profile_to_json(p).dump()));
  RC_ASSERT(read.ok());
  for (size_t i = 0; i < kOpClasses; ++i) {
    const OpCost &a = p.fp32.costs[i].forward, &b = read->fp32.costs[i].forward;
    RC_ASSERT(b.flop_s >= 0);
    RC_ASSERT(std::abs(b.flop_s - a.flop_s) <= 1e-6 * a.flop_s + 1e-16 || a.flop_s > 1e-6);
    RC_ASSERT(std::abs(b.byte_s - a.byte_s) <= 1e-6 * a.byte_s + 1e-14 || a.byte_s > 1e-5);
  }
}

TEST(DeviceProfile, AClassNobodyMeasuredIsLikeAnother) {
  json text = profile_to_json(profile());
  text["fp32"].erase("attention");
  text["fp32"].erase("norm");
  const DeviceProfile read = must(profile_from_json(text));
  const auto op_s = [&](OpClass c) { return read.fp32.costs[static_cast<size_t>(c)].forward.op_s; };
  EXPECT_EQ(op_s(OpClass::kNorm), op_s(OpClass::kElementwise));
  EXPECT_EQ(op_s(OpClass::kAttention), op_s(OpClass::kMatrix));
  text["fp32"].erase("matrix");
  EXPECT_THAT(error_of(text), HasSubstr("fp32 lacks the classes matrix"));
}

TEST(DeviceProfile, RefusesWhatNoDeviceDoes) {
  const json good = profile_to_json(profile());
  ASSERT_EQ(error_of(good), "");
  const auto with = [&](const char* pointer, const json& value) {
    json changed = good;
    changed[json::json_pointer(pointer)] = value;
    return error_of(changed);
  };
  EXPECT_THAT(with("/format", 2), HasSubstr("format 2"));
  EXPECT_THAT(with("/fp32/matrix/forward/gflops", 1e30), HasSubstr("gflops"));
  EXPECT_THAT(with("/fp32/matrix/forward/gflops", -1), HasSubstr("gflops"));
  EXPECT_THAT(with("/fp32/matrix/forward/op_us", 1e9), HasSubstr("op_us"));
  EXPECT_THAT(with("/fp32/norm/backward", json::object()), HasSubstr("costs nothing"));
  EXPECT_THAT(with("/bf16/norm/samples", 0), HasSubstr("samples"));
  EXPECT_THAT(with("/bf16/norm", "fast"), HasSubstr("not a JSON object"));
  EXPECT_THAT(with("/bf16/norm/forward/gbyte_s", "fast"), HasSubstr("not a number"));
  EXPECT_THAT(with("/threads", 0), HasSubstr("threads"));
  EXPECT_THAT(with("/memory_free_bytes", -5), HasSubstr("memory_free_bytes"));
  EXPECT_THAT(with("/to_device_gbyte_s", 1e20), HasSubstr("to_device_gbyte_s"));
  EXPECT_THAT(with("/fp32", nullptr), HasSubstr("fp32"));
  EXPECT_NE(error_of(json::array()), "");
}

TEST(DeviceProfile, SecondsAreOfClassDirectionAndPrecision) {
  Work work;
  work.of(OpClass::kMatrix) = {2, 1e9, 2e9, 1e6, 1e6};
  work.of(OpClass::kNorm) = {1, 1e6, 2e6, 1e7, 1e7};
  const DeviceProfile p = profile();
  const double norm = static_cast<double>(OpClass::kNorm) + 1;
  const PassSeconds single = seconds_of(work, p, Precision::kFp32);
  EXPECT_NEAR(single.forward, 2e-6 + 1e-2 + 1e-4 + norm * (1e-6 + 1e-5 + 1e-3), 1e-12);
  EXPECT_NEAR(single.backward, 4e-6 + 3e-2 + norm * (2e-6 + 3e-5), 1e-12);
  EXPECT_NEAR(seconds_of(work, p, Precision::kBf16).forward, single.forward / 4, 1e-12);
  EXPECT_NEAR(seconds_of(work, p, Precision::kFp16).backward, single.backward / 4, 1e-12);
  EXPECT_NEAR(seconds_of(work, p, Precision::kFp64).forward, single.forward * 2, 1e-12);
}

TEST(Work, ClassesOfOperators) {
  opdag::testing::GraphBuilder b;
  const auto x = b.input("x", {4, 8});
  const auto class_of_last = [&] { return op_class_name(op_class_of(b.graph.nodes.back())); };
  b.linear(x, "w", 8);
  EXPECT_EQ(class_of_last(), "matrix");
  b.relu(x);
  EXPECT_EQ(class_of_last(), "elementwise");
  b.tanh(x);
  EXPECT_EQ(class_of_last(), "function");
  b.unary("aten::gelu", x);
  EXPECT_EQ(class_of_last(), "function");
  b.unary("aten::tanh_", x);
  EXPECT_EQ(class_of_last(), "function");
  b.dropout(x);
  EXPECT_EQ(class_of_last(), "random");
  b.dropout(x, 0);
  EXPECT_EQ(class_of_last(), "elementwise") << "draws nothing";
  b.mean(x);
  EXPECT_EQ(class_of_last(), "reduce");
  b.op("aten::layer_norm", {{"input", opdag::ValueArg{x}}}, {4, 8});
  EXPECT_EQ(class_of_last(), "norm");
  b.unary("aten::zeros_like", x);
  EXPECT_EQ(class_of_last(), "index");
  EXPECT_EQ(node_work(b.graph)[0].of(OpClass::kMatrix).operators, 1);
}

TEST(Work, TheGradientOfAnEmbeddingIsTheWholeTable) {
  opdag::testing::GraphBuilder b;
  const auto table = b.parameter("table", {1000, 8});
  const auto ids = b.input("ids", {4}, DType::kInt64);
  b.op("aten::embedding", {{"weight", opdag::ValueArg{table}}, {"indices", opdag::ValueArg{ids}}},
       {4, 8});
  const ClassWork work = node_work(b.graph)[0].of(OpClass::kIndex);
  EXPECT_EQ(work.bytes_forward, 4 * 8 + 2 * 4 * 8 * 4);
  EXPECT_EQ(work.bytes_backward, work.bytes_forward + 1000 * 8 * 4);
}

TEST(Work, PlainCostsAreOneClassForAll) {
  Work work;
  work.of(OpClass::kMatrix) = {10, 4e9, 8e9, 0, 0};
  work.of(OpClass::kReduce) = {0, 0, 0, 1e9, 1e9};
  const PassSeconds seconds = seconds_of(work, plain_costs(1e-9 / 2, 1e-9 / 5, 1e-3));
  EXPECT_DOUBLE_EQ(seconds.forward, 2 + 0.2 + 0.01);
  EXPECT_DOUBLE_EQ(seconds.backward, 4 + 2 * (0.2 + 0.01));
  EXPECT_EQ(work.total().operators, 10);
}

}  // namespace
}  // namespace weft::job
