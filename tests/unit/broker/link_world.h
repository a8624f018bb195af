// A core with daemons that answer probes from a network that is known (synthetic_network.h), under
// a virtual clock, with a store in memory that survives restarts.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <set>

#include <unistd.h>

#include "broker/core.h"
#include "tests/unit/links/synthetic_network.h"

namespace weft::broker {

class LinkWorld final : public PeerLink {
 public:
  explicit LinkWorld(SyntheticNetwork& network, CoreOptions options = {})
      : network_(network), options_(std::move(options)) {
    static int worlds = 0;
    dir_ = os::Path(::testing::TempDir()) /
           ("weft_link_world_" + std::to_string(::getpid()) + "_" + std::to_string(worlds++));
    store_ = open_sqlite_store(":memory:").value();
    blobs_.emplace(net::BlobStore::open(dir_).value());
    restart();
  }
  ~LinkWorld() override { (void)os::remove_all(dir_).ok(); }

  Core& core() { return *core_; }
  Store& store() { return *store_; }
  std::vector<std::string> ids() const {
    std::vector<std::string> result;
    for (const LinkPeer& peer : network_.peers()) result.push_back(peer.id);
    return result;
  }
  size_t probes() const { return probes_; }
  size_t single_probes() const { return single_probes_; }  // of one target
  // Of probes to and from these peers.
  const std::set<std::string>& probed() const { return probed_; }
  void forget_probed() { probed_.clear(); }

  void restart() {
    core_ = std::make_unique<Core>(*store_, *blobs_, clock_, options_);
    core_->set_link(this);
    WEFT_CHECK(core_->load().ok());
    ++session_;
    said_hello_.clear();
  }

  // Heartbeats say that what a peer was given runs.
  void say_that_work_goes_on() { works_ = true; }

  // Answers are sent at once, or when they are no longer held.
  void hold_answers(bool hold) {
    hold_ = hold;
    for (const auto& [peer, report] : held_) answer(peer, report);
    held_.clear();
  }
  void spoil_answers(std::function<void(proto::ProbeReport&)> spoil) { spoil_ = std::move(spoil); }
  void answer_as(std::function<std::string(const std::string&)> who) { who_ = std::move(who); }

  void run_s(int seconds) {
    for (int tick = 0; tick < 4 * seconds; ++tick) step();
  }
  // A tick of the broker; every fourth time the peers are heard.
  void step() {
    if (steps_++ % 4 == 0) beat();
    clock_.advance_ms(250);
    core_->tick();
    deliver();
  }
  // Peers say hello, or that they live.
  void beat() {
    for (const LinkPeer& peer : network_.peers()) {
      if (!core_->state().peers.contains(peer.id)) {
        if (!joined_.insert(peer.id).second) continue;  // removed
        WEFT_CHECK(
            core_->admit(PeerJoined{peer.id, peer.id, "curve-" + peer.id, "key-" + peer.id}).ok());
      }
      if (core_->state().peers.at(peer.id).left_session == session_) continue;
      proto::PeerMessage message;
      message.set_session(session_);
      if (said_hello_.insert(peer.id).second) {
        auto& c = *message.mutable_hello()->mutable_capabilities();
        c.set_cores(4);
        c.set_device("cpu");
        c.set_memory_bytes(uint64_t{8} << 30);
        c.set_advertise_host(peer.address);
        c.set_blob_port(peer.dialable ? 7000 : 0);
      } else {
        message.mutable_heartbeat()->set_sequence(++beats_);
        const auto& held = core_->state().peers.at(peer.id).assignment;
        if (works_ && held) {
          auto& state = *message.mutable_heartbeat()->add_assignments();
          state.set_job(held->job);
          state.set_epoch(held->epoch);
          state.set_stage(held->stage);
          state.set_state("running");
        }
      }
      core_->on_message(peer.id, message);
    }
  }

  void send(const std::string& peer, proto::BrokerMessage message, int32_t) override {
    if (message.has_probe()) asked_.emplace_back(peer, message.probe());
  }
  void allow(const std::string&, const std::string&) override {}
  void revoke(const std::string&) override {}

 private:
  void deliver() {
    for (const auto& [peer, probe] : std::exchange(asked_, {})) {
      ++probes_;
      if (probe.targets_size() == 1) ++single_probes_;
      ProbeTask task;
      task.id = probe.task();
      task.prober = peer;
      task.receive = probe.receive();
      task.max_bytes = probe.max_bytes();
      probed_.insert(peer);
      for (const auto& target : probe.targets()) {
        task.targets.push_back(target.peer());
        probed_.insert(target.peer());
      }
      proto::ProbeReport report = report_of(network_.answer(task));
      if (spoil_) spoil_(report);
      if (hold_) {
        held_.emplace_back(peer, report);
      } else {
        answer(who_ ? who_(peer) : peer, report);
      }
    }
  }
  void answer(const std::string& peer, const proto::ProbeReport& report) {
    proto::PeerMessage message;
    message.set_session(session_);
    *message.mutable_probe() = report;
    core_->on_message(peer, message);
  }
  static proto::ProbeReport report_of(const ProbeResult& result) {
    proto::ProbeReport report;
    report.set_task(result.task);
    report.set_outcome("measured");
    for (const ProbedLink& link : result.links) {
      auto& entry = *report.add_links();
      entry.set_target(link.target);
      entry.set_round_trip_s(link.round_trip_s);
      entry.set_alone_bytes_s(link.alone_bytes_s);
      entry.set_together_bytes_s(link.together_bytes_s);
      for (const ProbeTrain& train : link.trains) {
        auto& sent = *entry.add_trains();
        sent.set_bytes(train.bytes);
        sent.set_seconds(train.seconds);
      }
    }
    return report;
  }

  SyntheticNetwork& network_;
  CoreOptions options_;
  VirtualClock clock_;
  os::Path dir_;
  std::unique_ptr<Store> store_;
  std::optional<net::BlobStore> blobs_;
  std::unique_ptr<Core> core_;
  std::set<std::string> joined_, said_hello_, probed_;
  std::vector<std::pair<std::string, proto::Probe>> asked_;
  std::vector<std::pair<std::string, proto::ProbeReport>> held_;
  std::function<void(proto::ProbeReport&)> spoil_;
  std::function<std::string(const std::string&)> who_;
  uint64_t session_ = 0, beats_ = 0, steps_ = 0;
  size_t probes_ = 0, single_probes_ = 0;
  bool hold_ = false, works_ = false;
};

}  // namespace weft::broker
