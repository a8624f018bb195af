// The whole daemon against a control server and an HTTPS server on loopback, a script as worker.
#include "daemon/service.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "daemon/settings.h"
#include "daemon/standstill.h"
#include "net/control/control.h"
#include "tests/unit/daemon/worker_script.h"
#include "tests/unit/net/http_fixture.h"

namespace weft::daemon {
namespace {

using job::WorkerEventKind;
using testing::say;

const std::string kListens = say(WorkerEventKind::kListening);
const std::string kObeys = kListens + "read line; exit 0";

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() {
    net::ControlServerOptions options;
    options.keys = broker_keys_;
    control_ = net::ControlServer::start(options, [this](const std::string&, const auto& message) {
                 std::lock_guard lock(mutex_);
                 heard_.push_back(message);
                 changed_.notify_all();
               }).value();
    control_->allow(peer_keys_.public_z85, "p-1");
    https_ = net::HttpServer::start(cluster_.server_options(), [](const net::HttpRequest&,
                                                                  const net::HttpReply& reply) {
               net::HttpResponse response;
               response.body = R"({"certificate_pem":"a certificate"})";
               reply(std::move(response));
             }).value();
  }
  ~ServiceTest() override {
    if (thread_.joinable()) {
      remove("the test ends");
      thread_.join();
    }
    control_->stop();
  }

  void run(const std::string& worker) {
    const net::Identity identity = cluster_.issue("p-1", "peer");
    Membership member;
    member.peer = "p-1";
    member.certificate_pem = identity.certificate_pem;
    member.key_pem = identity.key_pem;
    member.ca_pem = cluster_.authority().ca_pem();
    member.curve = peer_keys_;
    member.broker_host = member.control_host = "127.0.0.1";
    member.broker_port = https_->port();
    member.control_port = control_->port();
    member.control_key_z85 = broker_keys_.public_z85;
    for (const auto& [name, value] :
         std::map<std::string, std::string>{{"state_dir", dir_.string()},
                                            {"listen_host", "127.0.0.1"},
                                            {"device", "cpu"},
                                            {"name", "tester"},
                                            {"measure", "false"},
                                            {"worker", testing::script(dir_, worker).string()}}) {
      ASSERT_TRUE(config_.set_flag(name, value).ok());
    }
    auto service = Service::create(config_, std::move(member));
    ASSERT_TRUE(service.ok()) << service.error().text();
    service_ = std::move(*service);
    thread_ = std::thread([this] { verdict_ = service_->run(); });
    ASSERT_TRUE(hears([](const auto& message) { return message.has_hello(); }));
  }

  using Predicate = std::function<bool(const proto::PeerMessage&)>;
  bool hears(const Predicate& wanted) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20),
                             [&] { return std::any_of(heard_.begin(), heard_.end(), wanted); });
  }
  static Predicate update(const std::string& job, const std::string& state,
                          const std::string& error = {}) {
    return [=](const proto::PeerMessage& message) {
      return message.has_update() && message.update().job() == job &&
             message.update().state() == state &&
             message.update().error().message().find(error) != std::string::npos;
    };
  }

  void tell(proto::BrokerMessage message) { control_->send("p-1", std::move(message), 20000); }
  void prepare(const std::string& job) {
    proto::BrokerMessage message;
    message.mutable_prepare()->set_job(job);
    message.mutable_prepare()->set_epoch(1);
    message.mutable_prepare()->set_worker_spec_json(
        job::worker_spec_to_json(testing::worker_spec(job, 1, 0)).dump());
    tell(std::move(message));
  }
  void stop(const std::string& job) {
    proto::BrokerMessage message;
    message.mutable_stop()->set_job(job);
    message.mutable_stop()->set_epoch(1);
    tell(std::move(message));
  }
  void drain() {
    proto::BrokerMessage message;
    message.mutable_drain()->set_reason("test");
    tell(std::move(message));
  }
  void remove(const std::string& reason) {
    proto::BrokerMessage message;
    message.mutable_removed()->set_reason(reason);
    tell(std::move(message));
  }
  Status ends() {
    thread_.join();
    return verdict_;
  }

  const os::Path dir_ = testing::fresh_dir(
      std::string("service_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  net::Cluster cluster_{"daemon_service"};
  const net::CurveKeys broker_keys_ = net::make_curve_keys(), peer_keys_ = net::make_curve_keys();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<proto::PeerMessage> heard_;
  std::unique_ptr<net::ControlServer> control_;
  std::unique_ptr<net::HttpServer> https_;
  Config config_ = make_config();
  std::unique_ptr<Service> service_;
  Status verdict_;
  std::thread thread_;
};

TEST(ServiceSettings, AnUnknownJailIsRefusedBeforeAnythingStarts) {
  Config config = make_config();
  ASSERT_TRUE(config.set_flag("jail", "on").ok());
  const auto service = Service::create(config, {});
  ASSERT_FALSE(service.ok());
  EXPECT_NE(service.error().next.find("auto, required or off"), std::string::npos);
}

TEST_F(ServiceTest, SaysWhatThisMachineIsAndThatItLives) {
  run(kObeys);
  EXPECT_TRUE(hears([](const proto::PeerMessage& message) {
    const auto& facts = message.hello().capabilities();
    return message.has_hello() && facts.host() == "tester" && facts.cores() > 0 &&
           facts.blob_port() != 0 && facts.device() == "cpu";
  }));
  EXPECT_TRUE(hears([](const auto& message) { return message.heartbeat().sequence() >= 2; }));
}

TEST_F(ServiceTest, RunsStopsAndAnswersForWhatItDoesNotRun) {
  run(kObeys);
  prepare("one");
  ASSERT_TRUE(hears(update("one", "listening")));
  stop("unknown");
  EXPECT_TRUE(hears(update("unknown", "stopped")));
  stop("one");
  EXPECT_TRUE(hears(update("one", "stopped")));
  prepare("two");
  EXPECT_TRUE(hears(update("two", "listening")));
}

TEST_F(ServiceTest, ANewAssignmentReplacesTheOld) {
  run(kListens + "exec sleep 1000");
  prepare("one");
  ASSERT_TRUE(hears(update("one", "listening")));
  prepare("two");
  EXPECT_TRUE(hears(update("two", "listening")));
}

TEST_F(ServiceTest, ADrainingPeerEndsWhatItRunsAndTakesNothingNew) {
  run(kObeys);
  prepare("one");
  ASSERT_TRUE(hears(update("one", "listening")));
  drain();
  ASSERT_TRUE(hears([](const auto& message) { return message.heartbeat().draining(); }));
  prepare("late");
  EXPECT_TRUE(hears(update("late", "failed", "draining")));
  prepare("one");  // repeated, not new
  stop("one");
  EXPECT_TRUE(ends().ok());
  EXPECT_TRUE(hears(update("one", "stopped")));
  EXPECT_TRUE(hears([](const auto& message) { return message.has_leaving(); }));
}

TEST_F(ServiceTest, AHostileAssignmentIsRefusedAndTouchesNothing) {
  run(kObeys);
  const os::Path precious = dir_ / "precious.1.0";
  ASSERT_TRUE(os::write_file_atomic(precious, std::string_view("keep")).ok());
  prepare("one");
  ASSERT_TRUE(hears(update("one", "listening")));
  for (const std::string& job : {std::string("../precious"), std::string(), std::string("a/../b"),
                                 std::string("n\0l", 3), std::string(5000, 'x')}) {
    prepare(job);
    EXPECT_TRUE(hears(update(job, "failed", "job id"))) << job.substr(0, 40);
  }
  stop("one");  // it was not replaced
  EXPECT_TRUE(hears(update("one", "stopped")));
  EXPECT_EQ(*os::read_file(precious), "keep");
}

TEST_F(ServiceTest, ARemovedPeerEndsWithTheReason) {
  run(kObeys);
  prepare("one");
  ASSERT_TRUE(hears(update("one", "listening")));
  remove("misbehaved");
  const Status verdict = ends();
  ASSERT_FALSE(verdict.ok());
  EXPECT_EQ(verdict.error().code, Code::kDenied);
  EXPECT_NE(verdict.error().message.find("misbehaved"), std::string::npos);
}

TEST_F(ServiceTest, TheFirstSigtermDrainsTheSecondStops) {
  run(kObeys);
  prepare("one");
  ASSERT_TRUE(hears(update("one", "listening")));
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);
  ASSERT_TRUE(hears([](const auto& message) { return message.heartbeat().draining(); }));
  ASSERT_EQ(::kill(::getpid(), SIGHUP), 0);
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);
  EXPECT_TRUE(ends().ok());
  EXPECT_TRUE(hears(update("one", "stopped")));
}

TEST(Standstill, IsALongGapBetweenTwoLooks) {
  Standstill standstill(1000);
  EXPECT_FALSE(standstill.note(50000)) << "the first look has none before it";
  EXPECT_FALSE(standstill.note(51000));
  EXPECT_TRUE(standstill.note(52001));
  EXPECT_FALSE(standstill.note(52001));
}

}  // namespace
}  // namespace weft::daemon
