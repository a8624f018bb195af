// Probe: every metric of the broker, in one place; the methods say what happened. The broker's
// loop only.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <string>

#include "broker/coordinator/state.h"

namespace weft::broker {

class Probe {
 public:
  Probe();

  void message_received(const char* kind);
  void message_sent(const char* kind);
  void request_served(int status);
  void step_done(double seconds, int64_t tokens);
  void checkpoint_committed();
  void job_ended(JobPhase phase);
  void store_failed();
  void probe_sent();
  void probe_answered(const char* outcome);
  void traffic_told(const char* outcome);
  void links_known(size_t directions);  // measured themselves
  void loop_took(double seconds);       // one event, applied and stored

  // The exposition text; gauges are set from the state first.
  std::string text(const State& state);

 private:
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Gauge>& peers_;
  prometheus::Family<prometheus::Gauge>& jobs_;
  prometheus::Family<prometheus::Counter>& received_;
  prometheus::Family<prometheus::Counter>& sent_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Counter>& ended_;
  prometheus::Counter& steps_;
  prometheus::Counter& step_seconds_;
  prometheus::Counter& tokens_;
  prometheus::Counter& checkpoints_;
  prometheus::Counter& store_failures_;
  prometheus::Counter& probes_;
  prometheus::Family<prometheus::Counter>& probe_results_;
  prometheus::Family<prometheus::Counter>& traffic_;
  prometheus::Gauge& links_;
  prometheus::Counter& loop_seconds_;
  prometheus::Counter& loop_events_;
};

}  // namespace weft::broker
