#include "daemon/probing.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "net/probe/probe_desk.h"

namespace weft::daemon {
namespace {

constexpr int32_t kTimeoutMs = 5000;  // of connecting, and of silence
constexpr uint32_t kMaxMs = 60000;

Result<net::ProbeOrder> order_of(const proto::Probe& probe, const Membership& member) {
  const auto wrong = [&](const char* what) {
    return make_error(Code::kInvalid, fmt::format("probe {} {}", probe.task(), what),
                      "broker and daemon must be of the same version");
  };
  if (probe.targets_size() < 1 || probe.targets_size() > 2)
    return wrong("has not one or two targets");
  if (probe.max_bytes() == 0 || probe.max_ms() == 0) return wrong("may send nothing");
  net::ProbeOrder order;
  order.receive = probe.receive();
  order.max_bytes = std::min(probe.max_bytes(), net::ProbeDesk::kMaxTrainBytes);
  order.max_ms = std::min(probe.max_ms(), kMaxMs);
  for (const proto::PeerEndpoint& target : probe.targets()) {
    if (target.peer().empty() || target.peer() == member.peer) return wrong("is of no other peer");
    if (target.host().empty() || target.port() == 0 || target.port() > 65535) {
      return wrong("has a target without an address");
    }
    net::HttpClientOptions client = member.broker_client();
    client.host = target.host();
    client.port = static_cast<uint16_t>(target.port());
    client.expect_subject = target.peer();
    client.timeout_ms = kTimeoutMs;
    order.targets.push_back({target.peer(), std::move(client)});
  }
  return order;
}

proto::ProbeReport report_of(uint64_t task, const net::ProbeFinding& found) {
  using Outcome = net::ProbeFinding::Outcome;
  if (found.outcome == Outcome::kBusy || found.outcome == Outcome::kGivenUp) {
    return busy_report(task);
  }
  proto::ProbeReport report;
  report.set_task(task);
  if (found.outcome == Outcome::kUnreachable) {
    report.set_outcome("unreachable");
    report.set_unreachable(found.peer);
    return report;
  }
  report.set_outcome("measured");
  for (const net::ProbedWay& way : found.ways) {
    proto::ProbedLink& link = *report.add_links();
    link.set_target(way.peer);
    link.set_round_trip_s(way.round_trip_s);
    link.set_alone_bytes_s(way.alone_bytes_s);
    link.set_together_bytes_s(way.together_bytes_s);
    for (const net::TrainRate& train : way.trains) {
      proto::ProbeTrain& told = *link.add_trains();
      told.set_bytes(train.bytes);
      told.set_seconds(train.seconds);
    }
  }
  return report;
}

}  // namespace

proto::ProbeReport busy_report(uint64_t task) {
  proto::ProbeReport report;
  report.set_task(task);
  report.set_outcome("busy");
  return report;
}

Probing::Probing(const Membership& member, EventQueue& events, Report report)
    : member_(member), events_(events), report_(std::move(report)), runner_("weft-probe") {}

Probing::~Probing() {
  if (run_) run_->prober.interrupt();
}

void Probing::begin(const proto::Probe& probe) {
  auto order = order_of(probe, member_);
  if (!order.ok()) log_warning("not measured: {}", order.error().text());
  if (!order.ok() || run_) return report_(busy_report(probe.task()));
  run_ = std::make_shared<Run>(probe.task(), std::move(*order));
  runner_.post([this, run = run_] {
    const net::ProbeFinding found = run->prober.run();
    events_.post([this, weak = std::weak_ptr(run), found] {
      if (const auto self = weak.lock()) done(self.get(), found);
    });
  });
}

void Probing::done(const Run* run, const net::ProbeFinding& found) {
  if (run != run_.get()) return;
  const uint64_t task = run_->task;
  run_.reset();
  if (!found.why.empty()) log_debug("probe {}: {}: {}", task, found.peer, found.why);
  report_(report_of(task, found));
}

void Probing::interrupt(const std::string& why) {
  if (!run_) return;
  log_debug("probe {} is given up: {}", run_->task, why);
  run_->prober.interrupt();
  const uint64_t task = run_->task;
  run_.reset();
  report_(busy_report(task));
}

}  // namespace weft::daemon
