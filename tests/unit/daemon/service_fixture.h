// The whole daemon against a control server and an HTTPS server on loopback, a script as worker.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "daemon/service.h"
#include "daemon/settings.h"
#include "net/control/control.h"
#include "tests/unit/daemon/worker_script.h"
#include "tests/unit/net/http_fixture.h"

namespace weft::daemon {

// What a worker does.
inline const std::string kListens = testing::say(job::WorkerEventKind::kListening);
inline const std::string kObeys = kListens + "read line; exit 0";

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
  // So far.
  bool hears_ever(const Predicate& wanted) {
    std::lock_guard lock(mutex_);
    return std::any_of(heard_.begin(), heard_.end(), wanted);
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

}  // namespace weft::daemon
