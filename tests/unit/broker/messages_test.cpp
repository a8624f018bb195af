// Messages: what the broker asks a daemon, and what it lets through of an answer.
#include "broker/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "net/codec/parse.h"

namespace weft::broker {
namespace {

using ::testing::HasSubstr;

std::map<std::string, Peer> peers() {
  std::map<std::string, Peer> result;
  for (const char* id : {"a", "b", "c"}) {
    Peer peer;
    peer.id = id;
    peer.capabilities.advertise_host = std::string("host-") + id;
    peer.capabilities.blob_port = 7000;
    result.emplace(id, peer);
  }
  result.at("c").capabilities.blob_port = 0;
  return result;
}

proto::ProbeReport report() {
  proto::ProbeReport made;
  made.set_task(7);
  made.set_outcome("measured");
  proto::ProbedLink& link = *made.add_links();
  link.set_target("b");
  link.set_round_trip_s(0.02);
  proto::ProbeTrain& train = *link.add_trains();
  train.set_bytes(65536);
  train.set_seconds(0.004);
  link.set_alone_bytes_s(1e7);
  link.set_together_bytes_s(5e6);
  return made;
}

TEST(StepMessageTest, OnlyTimesAreTakenForCompute) {
  proto::WorkerReport report;
  job::WorkerEvent event;
  event.kind = job::WorkerEventKind::kStep;
  event.seconds = 2;
  const auto compute_s = [&](double told) {
    event.compute_s = told;
    const auto made = event_of("a", report, event);
    return std::get<StageReport>(made.value()).compute_s;
  };
  EXPECT_EQ(compute_s(0.5), 0.5);
  EXPECT_EQ(compute_s(2.5), 2.5);  // of a longer step before
  EXPECT_EQ(compute_s(-1), 0);
  EXPECT_EQ(compute_s(5e-324), 0);
  EXPECT_EQ(compute_s(1.7e308), 0);
  EXPECT_EQ(compute_s(std::numeric_limits<double>::infinity()), 0);
  EXPECT_EQ(compute_s(std::numeric_limits<double>::quiet_NaN()), 0);
}

TEST(ProbeMessageTest, ATaskTravelsToItsProber) {
  ProbeTask task;
  task.id = 7;
  task.prober = "a";
  task.targets = {"b", "a"};
  task.receive = true;
  task.max_bytes = 4096;
  task.max_ms = 500;
  proto::BrokerMessage sent;
  *sent.mutable_probe() = probe_message(task, peers()).value();
  proto::BrokerMessage got;
  ASSERT_TRUE(net::parse_message(sent.SerializeAsString(), got));
  ASSERT_EQ(got.body_case(), proto::BrokerMessage::kProbe);
  EXPECT_EQ(got.probe().task(), 7u);
  ASSERT_EQ(got.probe().targets_size(), 2);
  EXPECT_EQ(got.probe().targets(0).peer(), "b");
  EXPECT_EQ(got.probe().targets(0).host(), "host-b");
  EXPECT_EQ(got.probe().targets(0).port(), 7000u);
  EXPECT_EQ(got.probe().targets(1).peer(), "a");
  EXPECT_TRUE(got.probe().receive());
  EXPECT_EQ(got.probe().max_bytes(), 4096u);
  EXPECT_EQ(got.probe().max_ms(), 500u);
}

TEST(ProbeMessageTest, ATargetThatCannotBeDialledIsNamed) {
  ProbeTask task;
  for (const char* target : {"c", "gone"}) {
    task.targets = {target};
    const auto made = probe_message(task, peers());
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, Code::kUnavailable);
    EXPECT_THAT(made.error().message, HasSubstr(target));
  }
}

TEST(ProbeMessageTest, AReportIsWhatWasSent) {
  proto::PeerMessage sent, got;
  *sent.mutable_probe() = report();
  ASSERT_TRUE(net::parse_message(sent.SerializeAsString(), got));
  ASSERT_EQ(got.body_case(), proto::PeerMessage::kProbe);
  const ProbeResult result = probe_result(got.probe()).value();
  EXPECT_EQ(result.task, 7u);
  EXPECT_EQ(result.outcome, ProbeResult::Outcome::kMeasured);
  ASSERT_EQ(result.links.size(), 1u);
  EXPECT_EQ(result.links[0].target, "b");
  EXPECT_EQ(result.links[0].round_trip_s, 0.02);
  ASSERT_EQ(result.links[0].trains.size(), 1u);
  EXPECT_EQ(result.links[0].trains[0].bytes, 65536);
  EXPECT_EQ(result.links[0].trains[0].seconds, 0.004);
  EXPECT_EQ(result.links[0].alone_bytes_s, 1e7);
  EXPECT_EQ(result.links[0].together_bytes_s, 5e6);
}

TEST(ProbeMessageTest, OutcomesHaveNames) {
  proto::ProbeReport made;
  made.set_outcome("busy");
  EXPECT_EQ(probe_result(made).value().outcome, ProbeResult::Outcome::kBusy);
  made.set_outcome("unreachable");
  made.set_unreachable("b");
  EXPECT_EQ(probe_result(made).value().outcome, ProbeResult::Outcome::kUnreachable);
  EXPECT_EQ(probe_result(made).value().unreachable, "b");
  made.set_outcome("well");
  EXPECT_THAT(probe_result(made).error().message, HasSubstr("\"well\""));
  made.clear_outcome();
  EXPECT_FALSE(probe_result(made).ok());
}

TEST(ProbeMessageTest, NumbersThatNoLinkHasAreRefused) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const double odd : {nan, inf, -inf, -1.0, 1e300}) {
    for (int field = 0; field < 5; ++field) {
      proto::ProbeReport made = report();
      proto::ProbedLink& link = *made.mutable_links(0);
      if (field == 0) link.set_round_trip_s(odd);
      if (field == 1) link.set_alone_bytes_s(odd);
      if (field == 2) link.set_together_bytes_s(odd);
      if (field == 3) link.mutable_trains(0)->set_bytes(odd);
      if (field == 4) link.mutable_trains(0)->set_seconds(odd);
      EXPECT_FALSE(probe_result(made).ok()) << odd << " in field " << field;
    }
  }
}

TEST(ProbeMessageTest, CountsAreBounded) {
  proto::ProbeReport trains = report();
  while (trains.links(0).trains_size() <= 64) *trains.mutable_links(0)->add_trains() = {};
  EXPECT_EQ(probe_result(trains).error().code, Code::kTooLarge);
  proto::ProbeReport links = report();
  while (links.links_size() <= 2) *links.add_links() = links.links(0);
  EXPECT_EQ(probe_result(links).error().code, Code::kTooLarge);
}

}  // namespace
}  // namespace weft::broker
