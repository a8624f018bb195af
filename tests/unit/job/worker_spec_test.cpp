#include "job/worker_spec.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "job/json_read.h"

namespace weft::job {
namespace {

using nlohmann::json;

Plan sample_plan() {
  Plan plan;
  plan.epoch = 4000000000u;
  plan.partition = {2, {0, 0, 1, 1, 0}};
  plan.stages = {{{"peer-a"}, 1e12, 5000000000, 7}, {{"peer-b", "peer-c"}, 2, 3, 4}};
  plan.schedule = PipelineSchedule::kGPipe;
  plan.gap = 3;
  plan.stages.back().recompute = true;
  plan.reason = "two equal halves";
  return plan;
}

BlobRef blob(const std::string& name) {
  return {sha256_hex(name), name.size(), "/b/" + name};
}

WorkerSpec sample_spec() {
  WorkerSpec spec;
  spec.job = "j1";
  spec.stage = 1;
  spec.spec = *parse_job_toml(
      "name='j'\nmodel='m'\n[data]\ntrain='t'\n[data.bind]\nx='tokens'\n"
      "[train]\nsteps=3\nbatch=2\nlr=0.1\n",
      "", {});
  spec.plan = sample_plan();
  spec.graph = blob("graph");
  spec.eval_graph = blob("eval");
  spec.weights = {{"data/weights/weight_0", blob("w0")}, {"data/weights/weight_1", blob("w1")}};
  spec.data = {{"train", blob("t")}};
  spec.token_dtype = "uint16";
  spec.resume = {12, {blob("s0"), blob("s1")}};
  spec.work_dir = "/w";
  spec.device = "cuda:0";
  spec.threads = 4;
  spec.listen_host = "::1";
  spec.listen_port = 65535;
  spec.certificate_path = "c";
  spec.key_path = "k";
  spec.ca_path = "a";
  spec.link_timeout_ms = 1;
  return spec;
}

TEST(PlanJson, RoundTrips) {
  const Plan plan = sample_plan();
  const json first = plan_to_json(plan);
  Result<Plan> again = plan_from_json(json::parse(first.dump()));
  ASSERT_TRUE(again.ok()) << again.error().text();
  EXPECT_EQ(plan_to_json(*again), first);
  EXPECT_EQ(again->partition, plan.partition);
  EXPECT_EQ(again->epoch, plan.epoch);
  EXPECT_EQ(again->stages[1].replicas, plan.stages[1].replicas);
}

TEST(PlanJson, RefusesWhatCannotBe) {
  const json good = plan_to_json(sample_plan());
  const auto refused = [&](const char* pointer, json value) {
    json bad = good;
    bad[json::json_pointer(pointer)] = std::move(value);
    return !plan_from_json(bad).ok();
  };
  EXPECT_TRUE(refused("/partition/stage_of/1", 2));
  EXPECT_TRUE(refused("/partition/stage_of/1", -1));
  EXPECT_TRUE(refused("/partition/stage_of/1", 18446744073709551615u));
  EXPECT_TRUE(refused("/partition/stages", 0));
  EXPECT_TRUE(refused("/partition/stages", 3));
  EXPECT_TRUE(refused("/epoch", -1));
  EXPECT_TRUE(refused("/gap", 0));
  EXPECT_TRUE(refused("/schedule", "zb"));
  EXPECT_TRUE(refused("/stages/0/memory_bytes", -5));
  EXPECT_TRUE(refused("/stages/0", 5));
  EXPECT_FALSE(plan_from_json(json(3)).ok());
  EXPECT_FALSE(plan_from_json(json::object()).ok());
}

TEST(WorkerSpecJson, RoundTrips) {
  const WorkerSpec spec = sample_spec();
  const json first = worker_spec_to_json(spec);
  Result<WorkerSpec> again = worker_spec_from_json(json::parse(first.dump()));
  ASSERT_TRUE(again.ok()) << again.error().text();
  EXPECT_EQ(worker_spec_to_json(*again), first);
  EXPECT_EQ(again->weights.at("data/weights/weight_1").sha256, sha256_hex("w1"));
  EXPECT_EQ(again->resume.shards.size(), 2u);
  EXPECT_TRUE(again->init.sha256.empty());
  EXPECT_EQ(again->listen_port, 65535);
}

TEST(WorkerSpecJson, RefusesWhatCannotBe) {
  const json good = worker_spec_to_json(sample_spec());
  const auto refused = [&](const char* pointer, json value) {
    json bad = good;
    bad[json::json_pointer(pointer)] = std::move(value);
    return !worker_spec_from_json(bad).ok();
  };
  EXPECT_TRUE(refused("/stage", 2));
  EXPECT_TRUE(refused("/listen_port", 65536));
  EXPECT_TRUE(refused("/graph/sha256", "../../etc/passwd"));
  EXPECT_TRUE(refused("/resume/step", -1));
  EXPECT_TRUE(refused("/spec/train/lr", -1));
  EXPECT_TRUE(refused("/threads", 0));
  json missing = good;
  missing.erase("plan");
  EXPECT_FALSE(worker_spec_from_json(missing).ok());
}

TEST(WorkerSpecJson, ReadsOneOfABrokerThatSaysMore) {
  json more = worker_spec_to_json(sample_spec());
  EXPECT_FALSE(more.contains("broker_timeout_ms")) << "a daemon learns it from Welcome";
  more["broker_timeout_ms"] = 30000;  // of an older broker
  more["of_tomorrow"] = {1, 2};
  EXPECT_TRUE(worker_spec_from_json(more).ok());
}

TEST(WorkerEventJson, RoundTripsWithNan) {
  WorkerEvent event;
  event.kind = WorkerEventKind::kStep;
  event.step = 7;
  event.loss = std::nan("");
  event.grad_norm = 1.5;
  event.loss_scale = 1024;
  event.skipped_steps = 2;
  event.edge_bytes = {{0, 10}, {12, int64_t{1} << 40}};
  event.traffic = {{3, 6.25e6, 0.031}, {0, 1e3, 0}};
  event.message = "bad \xff byte";
  Result<json> line = parse_json(json_line(event_to_json(event)), "line");
  ASSERT_TRUE(line.ok()) << line.error().text();
  Result<WorkerEvent> again = event_from_json(*line);
  ASSERT_TRUE(again.ok()) << again.error().text();
  EXPECT_EQ(again->kind, event.kind);
  EXPECT_TRUE(std::isnan(again->loss));
  EXPECT_EQ(again->accuracy, -1);
  EXPECT_EQ(again->loss_scale, 1024);
  EXPECT_EQ(again->skipped_steps, 2);
  EXPECT_EQ(again->edge_bytes, event.edge_bytes);
  EXPECT_EQ(again->traffic, event.traffic);
  EXPECT_FALSE(event_from_json(json{{"type", "dance"}}).ok());
  EXPECT_FALSE(event_from_json(json{{"type", "step"}, {"edge_bytes", {{"x", 1}}}}).ok());
  EXPECT_FALSE(event_from_json(json{{"step", 1}}).ok());
}

TEST(WorkerEventJson, TrafficIsReadMemberByMember) {
  const auto read = [](json traffic) {
    return event_from_json(json{{"type", "step"}, {"traffic", std::move(traffic)}});
  };
  EXPECT_TRUE(event_from_json(json{{"type", "step"}})->traffic.empty()) << "of older workers";
  const auto told = read({{{"stage", 2}, {"bytes_s", -1e30}, {"round_trip_s", nullptr}}});
  ASSERT_TRUE(told.ok()) << told.error().text();
  EXPECT_EQ(told->traffic.at(0).bytes_s, -1e30) << "to be judged by who knows links";
  EXPECT_TRUE(std::isnan(told->traffic.at(0).round_trip_s));
  EXPECT_FALSE(read({{{"bytes_s", 1}}}).ok()) << "of no stage";
  EXPECT_FALSE(read({{{"stage", -1}, {"bytes_s", 1}}}).ok());
  EXPECT_FALSE(read({{{"stage", 1}, {"bytes_s", "fast"}}}).ok());
  EXPECT_FALSE(read({5}).ok());
  EXPECT_FALSE(read({{"stage", 1}}).ok());
  EXPECT_FALSE(read(json::array_t(100000, {{"stage", 1}})).ok());
}

TEST(ParseJson, IsBounded) {
  EXPECT_EQ(parse_json(std::string(1 << 20, '['), "x").error().code, Code::kTooLarge);
  EXPECT_EQ(parse_json("{\"a\":", "x").error().code, Code::kCorrupt);
  EXPECT_EQ(parse_json("", "x").error().code, Code::kCorrupt);
  EXPECT_TRUE(parse_json("[[1]]", "x").ok());
}

RC_GTEST_PROP(WorkerSpecJson, AnyMemberMayBeAnything, (const std::string& text, int64_t number)) {
  const json good = worker_spec_to_json(sample_spec()).flatten();
  for (const auto& [pointer, ignored] : good.items()) {
    for (json value : {json(text), json(number), json(), json::array({number}), json(0.5)}) {
      json bad = worker_spec_to_json(sample_spec());
      bad[json::json_pointer(pointer)] = value;
      (void)worker_spec_from_json(bad);
    }
    break;
  }
}

}  // namespace
}  // namespace weft::job
