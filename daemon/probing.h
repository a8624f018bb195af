// Probing: measures the ways to other peers where the broker asks for it (net/probe/prober.h).
//
//   idle --begin()--> measuring --measured, busy, unreachable--> idle
//                               --interrupt()------------------> idle
//
// Each Probe gets one report. Main thread; the measuring itself blocks a thread of its own
// ("weft-probe").
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "daemon/event_queue.h"
#include "daemon/membership.h"
#include "daemon/task_runner.h"
#include "net/probe/prober.h"
#include "net/proto/control.pb.h"

namespace weft::daemon {

class Probing {
 public:
  using Report = std::function<void(proto::ProbeReport)>;
  // report: on the main thread, by way of events. member: as long as this lives.
  Probing(const Membership& member, EventQueue& events, Report report);
  ~Probing();

  // One that cannot be carried out is answered "busy": others may be asked.
  void begin(const proto::Probe& probe);
  // The machine is needed: the probe under way is given up and answered "busy" at once.
  void interrupt(const std::string& why);
  bool measuring() const { return run_ != nullptr; }

 private:
  // What comes of a run that was given up finds nobody.
  struct Run {
    Run(uint64_t asked, net::ProbeOrder order) : task(asked), prober(std::move(order)) {}
    uint64_t task;
    net::Prober prober;
  };
  void done(const Run* run, const net::ProbeFinding& found);

  const Membership& member_;
  EventQueue& events_;
  Report report_;
  std::shared_ptr<Run> run_;
  TaskRunner runner_;  // last: ends before what it uses
};

// The answer that says "not now".
proto::ProbeReport busy_report(uint64_t task);

}  // namespace weft::daemon
