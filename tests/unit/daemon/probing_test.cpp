// The whole daemon measures the way to a peer, is measured, and puts both off for work.
#include <gtest/gtest.h>

#include "net/gate/link_gate.h"
#include "net/probe/probe_desk.h"
#include "tests/unit/daemon/service_fixture.h"

namespace weft::daemon {
namespace {

class ProbingTest : public ServiceTest {
 protected:
  // A peer that can be measured, behind a gate.
  void open_target(const std::string& name = "p-2") {
    net::HttpServerOptions options = cluster_.server_options(name, "peer");
    options.upload = [this](const net::HttpRequest& request) {
      return desk_.upload(request, "p-1");
    };
    desk_.open();
    target_ = net::HttpServer::start(options, [this](const net::HttpRequest& request,
                                                     const net::HttpReply& reply) {
                desk_.serve(request, "p-1", reply);
              }).value();
    net::LinkGateOptions gate;
    gate.target_port = target_->port();
    gate.latency_ms = 5;
    gate_ = net::LinkGate::start(gate).value();
  }
  void probe(uint64_t task, bool receive = false, uint64_t max_bytes = 1 << 20) {
    proto::BrokerMessage message;
    proto::Probe& probe = *message.mutable_probe();
    probe.set_task(task);
    probe.set_receive(receive);
    probe.set_max_bytes(max_bytes);
    probe.set_max_ms(2000);
    proto::PeerEndpoint& target = *probe.add_targets();
    target.set_peer("p-2");
    target.set_host("127.0.0.1");
    target.set_port(gate_->port());
    tell(std::move(message));
  }
  static Predicate report(uint64_t task, const std::string& outcome) {
    return [=](const proto::PeerMessage& message) {
      return message.probe().task() == task && message.probe().outcome() == outcome;
    };
  }
  proto::ProbeReport report_of(uint64_t task) {
    std::lock_guard lock(mutex_);
    for (const auto& message : heard_) {
      if (message.probe().task() == task) return message.probe();
    }
    return {};
  }
  uint64_t beats() {
    std::lock_guard lock(mutex_);
    uint64_t last = 0;
    for (const auto& message : heard_) last = std::max(last, message.heartbeat().sequence());
    return last;
  }
  // What the daemon says to a peer, or to somebody else, that wants to measure it.
  int asks(const std::string& subject, const std::string& kind) {
    uint16_t port = 0;
    {
      std::lock_guard lock(mutex_);
      for (const auto& message : heard_) {
        if (message.has_hello()) {
          port = static_cast<uint16_t>(message.hello().capabilities().blob_port());
        }
      }
    }
    net::HttpClientOptions options = cluster_.client_options(port);
    const net::Identity identity = cluster_.issue(subject, kind);
    options.certificate_pem = identity.certificate_pem;
    options.key_pem = identity.key_pem;
    net::HttpClient client(options);
    const auto answer = client.request("GET", "/api/v1/probe");
    (void)client.request("DELETE", "/api/v1/probe");
    return answer.ok() ? answer->status : 0;
  }
  bool soon_asks(const std::string& subject, int status) {
    for (int i = 0; i < 2000; ++i) {
      if (asks(subject, "peer") == status) return true;
    }
    return false;
  }

  net::ProbeDesk desk_;
  std::unique_ptr<net::HttpServer> target_;
  std::unique_ptr<net::LinkGate> gate_;
};

TEST_F(ProbingTest, MeasuresWhatTheBrokerAsksFor) {
  open_target();
  run(kObeys);
  for (const bool receive : {false, true}) {
    const uint64_t task = receive ? 8 : 7;
    probe(task, receive);
    ASSERT_TRUE(hears(report(task, "measured"))) << report_of(task).outcome();
    const proto::ProbeReport got = report_of(task);
    ASSERT_EQ(got.links_size(), 1);
    EXPECT_EQ(got.links(0).target(), "p-2");
    EXPECT_GE(got.links(0).round_trip_s(), 0.010);
    EXPECT_LT(got.links(0).round_trip_s(), 0.1);
    ASSERT_GT(got.links(0).trains_size(), 0);
    EXPECT_GT(got.links(0).trains(0).bytes(), 0);
    EXPECT_GT(got.links(0).trains(0).seconds(), 0);
  }
}

TEST_F(ProbingTest, NamesWhoCannotBeReached) {
  open_target();
  target_->stop();
  run(kObeys);
  probe(3);
  ASSERT_TRUE(hears(report(3, "unreachable")));
  EXPECT_EQ(report_of(3).unreachable(), "p-2");
}

TEST_F(ProbingTest, SomebodyElseAtTheAddressIsNotMeasured) {
  open_target("p-9");
  run(kObeys);
  probe(3);
  EXPECT_TRUE(hears(report(3, "unreachable")));
}

TEST_F(ProbingTest, SaysBusyWhileItWorksAndIsNotMeasured) {
  open_target();
  run(kObeys);
  ASSERT_TRUE(soon_asks("p-2", 200));
  prepare("one");
  ASSERT_TRUE(hears(update("one", "listening")));
  probe(4);
  EXPECT_TRUE(hears(report(4, "busy")));
  EXPECT_EQ(gate_->stats().connections, 0);
  EXPECT_EQ(asks("p-2", "peer"), 503);
  stop("one");
  ASSERT_TRUE(hears(update("one", "stopped")));
  EXPECT_TRUE(soon_asks("p-2", 200));
}

TEST_F(ProbingTest, AnAssignmentEndsAProbeThatWaits) {
  open_target();
  gate_->stall(true);
  run(kObeys);
  probe(5);
  while (gate_->stats().connections == 0) std::this_thread::yield();
  prepare("one");
  EXPECT_TRUE(hears(report(5, "busy")));
  EXPECT_TRUE(hears(update("one", "listening")));
}

TEST_F(ProbingTest, ControlGoesOnMeanwhileAndASecondProbeHearsBusy) {
  open_target();
  gate_->stall(true);
  run(kObeys);
  probe(5);
  while (gate_->stats().connections == 0) std::this_thread::yield();
  probe(6);
  EXPECT_TRUE(hears(report(6, "busy")));
  EXPECT_EQ(asks("p-2", "peer"), 503) << "who measures is not measured";
  const uint64_t before = beats();
  EXPECT_TRUE(
      hears([&](const auto& message) { return message.heartbeat().sequence() >= before + 2; }));
}

TEST_F(ProbingTest, AnAskThatMakesNoSenseHearsBusy) {
  open_target();
  run(kObeys);
  probe(9, false, 0);
  EXPECT_TRUE(hears(report(9, "busy")));
  proto::BrokerMessage message;
  message.mutable_probe()->set_task(10);
  tell(std::move(message));
  EXPECT_TRUE(hears(report(10, "busy")));
}

TEST_F(ProbingTest, IsMeasuredByPeersOfTheClusterOnly) {
  run(kObeys);
  ASSERT_TRUE(soon_asks("p-2", 200));
  EXPECT_EQ(asks("w-1", "worker"), 403);
  proto::BrokerMessage message;
  message.mutable_welcome()->add_revoked("p-2");
  tell(std::move(message));
  EXPECT_TRUE(soon_asks("p-2", 403));
  EXPECT_EQ(asks("p-3", "peer"), 200);
}

}  // namespace
}  // namespace weft::daemon
