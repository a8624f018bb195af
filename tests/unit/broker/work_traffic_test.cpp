// What running jobs say of the links their messages crossed: believed of the plan's own ways only,
// within bounds, once in a while; kept, shown, planned with.
#include "broker/work_traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graphs.h"
#include "job/json_read.h"
#include "link_world.h"

namespace weft::broker {
namespace {

using ::testing::HasSubstr;

constexpr double kRate = 5e6, kTrip = 0.030;

// Three homes that run a chain of three stages: messages go from each to the next and back.
class WorkTrafficTest : public ::testing::Test {
 protected:
  void start(bool probes) {
    world_.reset();
    network_ = SyntheticNetwork(1);
    for (int i = 0; i < 3; ++i) {
      network_.add_site({.x_ms = 9.0 * i, .up_mbit_s = 8, .down_mbit_s = 100}, 1);
    }
    CoreOptions options;
    options.probe_links = probes;
    for (const LinkPeer& peer : network_.peers()) {
      PlannerPeer known;
      known.id = peer.id;
      known.gflops = 1000;
      options.known.peers.push_back(known);
    }
    options.known.site_of.resize(options.known.peers.size());
    world_.emplace(network_, options);
    world_->run_s(probes ? 60 : 1);
  }
  Submission submission() const {
    Submission made;
    made.spec = testing::chain_spec(16);
    made.spec.pipeline.stages = 3;
    return made;
  }
  void deploy() {
    const nlohmann::json body = {{"spec", job::spec_to_json(submission().spec)}};
    ASSERT_TRUE(world_->core().submit("j", body, submission(), {graph_, graph_}).ok());
    for (int tick = 0; tick < 40 && job().phase == JobPhase::kQueued; ++tick) world_->step();
    for (const char* state : {"listening", "ready"}) {
      for (size_t stage = 0; stage < job().stages.size(); ++stage) update(stage, state);
      world_->step();
    }
    ASSERT_EQ(job().phase, JobPhase::kRunning) << job().reason;
    ASSERT_EQ(job().stages.size(), 3u);
  }
  void update(size_t stage, const char* state) {
    proto::PeerMessage message;
    proto::AssignmentUpdate& update = *message.mutable_update();
    update.set_job("j");
    update.set_epoch(job().epoch);
    update.set_stage(static_cast<int32_t>(stage));
    update.set_state(state);
    update.set_advertise_host("host");
    update.set_port(7000);
    world_->core().on_message(peer(stage), message);
  }
  const Job& job() { return world_->core().state().jobs.at("j"); }
  std::string peer(size_t stage) { return job().stages.at(stage).peer; }

  struct Told {
    std::string peer, job = "j";
    uint32_t epoch = 0;
    int32_t stage = 0;
    std::vector<job::LinkTraffic> traffic;
    int64_t step = 1;
    double seconds = 1;
  };
  Told told(size_t stage, int32_t to, double bytes_s = kRate, double round_trip_s = kTrip) {
    return {
        peer(stage), "j", job().epoch, static_cast<int32_t>(stage), {{to, bytes_s, round_trip_s}}};
  }
  void tell(const Told& told) {
    job::WorkerEvent event;
    event.kind = job::WorkerEventKind::kStep;
    event.step = told.step;
    event.seconds = told.seconds;
    event.traffic = told.traffic;
    proto::PeerMessage message;
    proto::WorkerReport& report = *message.mutable_report();
    report.set_job(told.job);
    report.set_epoch(told.epoch);
    report.set_stage(told.stage);
    report.set_event_json(job::json_line(job::event_to_json(event)));
    world_->core().on_message(told.peer, message);
  }
  // Between neighbours, both ways, once their stages may speak again.
  void tell_all_ways(double bytes_s) {
    for (size_t stage = 0; stage < 3; ++stage) {
      for (const int32_t other : {-1, 1}) {
        const int32_t to = static_cast<int32_t>(stage) + other;
        if (to < 0 || to > 2) continue;
        world_->run_s(1);
        tell(told(stage, to, bytes_s, 0));
      }
    }
  }
  const LinkEntry* known(size_t from, size_t to) {
    return world_->core().links().find({peer(from), peer(to)});
  }
  double mbit_s(size_t from, size_t to) {
    const LinkEntry* entry = known(from, to);
    return entry == nullptr || !entry->fit ? 0 : 8e-6 / entry->fit->seconds_per_byte;
  }

  SyntheticNetwork network_{1};
  const opdag::Graph graph_ = testing::chain_graph(6, 4, 2048);
  std::optional<LinkWorld> world_;
};

TEST_F(WorkTrafficTest, AWayThatWasNeverProbedIsKnownByWorkAndOutlivesARestart) {
  start(false);
  deploy();
  EXPECT_EQ(world_->core().links().directions(), 0u);
  tell(told(0, 1));
  tell(told(1, 0, 1e6));
  EXPECT_NEAR(mbit_s(0, 1), 40, 1e-6);
  EXPECT_NEAR(mbit_s(1, 0), 8, 1e-6);
  EXPECT_DOUBLE_EQ(known(0, 1)->fit->latency_s, kTrip / 2);
  EXPECT_EQ(world_->probes(), 0u);
  const std::string metrics = world_->core().probe().text(world_->core().state());
  EXPECT_THAT(metrics, HasSubstr("weft_links_known 2"));
  EXPECT_THAT(metrics, HasSubstr("weft_traffic_reports_total{outcome=\"news\"} 2"));
  const LinkKey way{peer(0), peer(1)};
  world_->restart();
  const LinkEntry* kept = world_->core().links().find(way);
  ASSERT_NE(kept, nullptr);
  EXPECT_TRUE(kept->fit->carried);
  EXPECT_NEAR(kept->fit->seconds_per_byte * kRate, 1, 1e-9);
}

TEST_F(WorkTrafficTest, AProbeThatSaidTooLittleIsCorrectedAndPlansCountIt) {
  start(true);
  const auto step_s = [&] {
    const auto plan = world_->core().dry_run(submission(), {graph_, graph_});
    EXPECT_TRUE(plan.ok()) << plan.error().text();
    return plan.ok() ? plan->step_s : 0;
  };
  const double before_s = step_s();
  deploy();
  ASSERT_NEAR(mbit_s(0, 1), 8, 1.5) << "as probed";
  tell(told(0, 1, kRate, 0));
  EXPECT_NEAR(mbit_s(0, 1), 40, 1e-6);
  tell(told(1, 2, 2e5, 0));
  EXPECT_NEAR(mbit_s(1, 2), 8, 1.5) << "a part of a shared line is not the link";
  tell_all_ways(kRate);
  for (size_t stage : {0, 1}) {
    EXPECT_NEAR(mbit_s(stage, stage + 1), 40, 1e-6);
    EXPECT_NEAR(mbit_s(stage + 1, stage), 40, 1e-6);
  }
  ASSERT_TRUE(world_->core().command(CancelJob{"j", ""}).ok());
  for (size_t stage = 0; stage < 3; ++stage) update(stage, "stopped");
  world_->beat();
  EXPECT_LT(step_s(), 0.6 * before_s) << "the next plan is made with what work has shown";
}

// Steps take longer than predicted, so that the job is looked at; its plan is then judged over
// links as fast as its own messages were.
TEST_F(WorkTrafficTest, ARunningJobIsPlannedAnewWithWhatItsMessagesHaveShown) {
  double planned_s = 0;
  const auto look = [&](bool work_tells) {
    start(true);
    deploy();
    world_->say_that_work_goes_on();
    planned_s = job().plan->step_s;
    if (work_tells) tell_all_ways(kRate);
    for (int64_t step = 1; step <= 12; ++step) {
      for (size_t stage = 0; stage < 3; ++stage) {
        Told slow = told(stage, 0);
        slow.traffic.clear();
        slow.step = step;
        slow.seconds = 2 * planned_s;
        tell(slow);
      }
      world_->run_s(1);
    }
    world_->run_s(60);
    const std::vector<DecisionRow> rows = world_->store().decisions("j").value();
    return rows.size() < 2 ? std::string() : rows[1].reason;
  };
  EXPECT_THAT(look(false), HasSubstr("planned anew, the plan is the same"));
  const std::string told = look(true);
  const size_t at = told.find(" instead of ");
  ASSERT_NE(at, std::string::npos) << told;
  const double judged_s = std::stod(told.substr(at + 12));
  EXPECT_GT(judged_s, 0.1 * planned_s) << told;
  EXPECT_LT(judged_s, 0.6 * planned_s) << told;
}

TEST_F(WorkTrafficTest, WhatNobodyMaySayChangesNothing) {
  start(false);
  deploy();
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  std::vector<std::pair<const char*, Told>> lies = {
      {"no edge between the stages", told(0, 2)},
      {"its own stage", told(1, 1)},
      {"no such stage", told(0, 3)},
      {"negative stage", told(0, -1)},
      {"far beyond", told(0, std::numeric_limits<int32_t>::max())},
      {"no number", told(0, 1, nan)},
      {"endless", told(0, 1, inf)},
      {"negative rate", told(0, 1, -kRate)},
      {"faster than any link", told(0, 1, 1e30)},
      {"no latency", told(0, 1, kRate, 0)},
      {"negative latency", told(0, 1, kRate, -kTrip)},
      {"no rate", told(0, 1, 0)},
  };
  Told other = told(0, 1);
  other.job = "another";
  lies.emplace_back("a job of nobody", other);
  other = told(0, 1);
  other.epoch -= 1;
  lies.emplace_back("an old epoch", other);
  other.epoch += 2;
  lies.emplace_back("an epoch to come", other);
  other = told(0, 1);
  other.peer = peer(2);
  lies.emplace_back("of another peer's stage", other);
  other = told(0, 1);
  other.stage = -5;
  lies.emplace_back("of no stage", other);
  other.stage = 3;
  lies.emplace_back("of a stage beyond the plan", other);
  for (const auto& [what, lie] : lies) {
    start(false);  // each the first: none is left out for being too early
    deploy();
    tell(lie);
    EXPECT_EQ(world_->core().links().directions(), 0u) << what;
    EXPECT_TRUE(world_->store().links()->empty()) << what;
    EXPECT_EQ(job().phase, JobPhase::kRunning) << what;
  }
  start(false);
  deploy();
  tell(told(0, 1));
  EXPECT_EQ(world_->core().links().directions(), 1u) << "the truth is believed";
}

TEST_F(WorkTrafficTest, AJobThatEndedSaysNothing) {
  start(false);
  deploy();
  const Told late = told(0, 1);
  ASSERT_TRUE(world_->core().command(CancelJob{"j", ""}).ok());
  tell(late);
  EXPECT_EQ(world_->core().links().directions(), 0u);
}

TEST_F(WorkTrafficTest, AFloodIsOneReportASecond) {
  start(false);
  deploy();
  for (int i = 0; i < 1000; ++i) tell(told(0, 1, kRate * (1 + i)));
  EXPECT_NEAR(mbit_s(0, 1), 40, 1e-6);
  for (int i = 0; i < 1000; ++i) tell(told(2, 1, 1e6 * (1 + i)));
  EXPECT_NEAR(mbit_s(2, 1), 8, 1e-6) << "another stage has a second of its own";
  world_->run_s(1);
  tell(told(0, 1, 2 * kRate));
  EXPECT_NEAR(mbit_s(0, 1), 80, 1e-6);
  Told many = told(0, 1, 3 * kRate);
  many.traffic.insert(many.traffic.end(), 4000, {1, 100 * kRate, kTrip});
  world_->run_s(1);
  tell(many);
  EXPECT_NEAR(mbit_s(0, 1), 120, 1e-6) << "of a way that is named twice the first counts";
}

}  // namespace
}  // namespace weft::broker
