#include "broker/probe.h"

#include <prometheus/text_serializer.h>

#include <cmath>

#include "base/version.h"

namespace weft::broker {
namespace {

auto& counter(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

}  // namespace

Probe::Probe()
    : peers_(
          prometheus::BuildGauge().Name("weft_peers").Help("Peers by state").Register(registry_)),
      jobs_(prometheus::BuildGauge().Name("weft_jobs").Help("Jobs by state").Register(registry_)),
      received_(counter(registry_, "weft_messages_received_total", "Control messages from peers")),
      sent_(counter(registry_, "weft_messages_sent_total", "Control messages to peers")),
      requests_(counter(registry_, "weft_http_requests_total", "API requests by status class")),
      ended_(counter(registry_, "weft_jobs_ended_total", "Jobs that ended, by how")),
      steps_(counter(registry_, "weft_steps_total", "Training steps done").Add({})),
      step_seconds_(
          counter(registry_, "weft_step_seconds_total", "Wall time of training steps").Add({})),
      tokens_(counter(registry_, "weft_tokens_total", "Tokens trained on").Add({})),
      checkpoints_(
          counter(registry_, "weft_checkpoints_total", "Complete checkpoints committed").Add({})),
      store_failures_(
          counter(registry_, "weft_store_failures_total", "Batches the store refused").Add({})),
      probes_(
          counter(registry_, "weft_probes_sent_total", "Measurements of links asked for").Add({})),
      probe_results_(counter(registry_, "weft_probe_results_total",
                             "Answers to them, by outcome; refused: not believed")),
      traffic_(
          counter(registry_, "weft_traffic_reports_total",
                  "What workers said of links their messages crossed, by outcome; refused: not "
                  "believed, or too often")),
      links_(prometheus::BuildGauge()
                 .Name("weft_links_known")
                 .Help("Directions between two peers that were measured")
                 .Register(registry_)
                 .Add({})),
      loop_seconds_(
          counter(registry_, "weft_loop_seconds_total", "Time the loop spent on events").Add({})),
      loop_events_(counter(registry_, "weft_loop_events_total", "Events of the loop").Add({})) {
  prometheus::BuildGauge()
      .Name("weft_build_info")
      .Help("Version of the broker")
      .Register(registry_)
      .Add({{"version", kVersion}})
      .Set(1);
}

void Probe::message_received(const char* kind) {
  received_.Add({{"kind", kind}}).Increment();
}
void Probe::message_sent(const char* kind) {
  sent_.Add({{"kind", kind}}).Increment();
}
void Probe::request_served(int status) {
  requests_.Add({{"status", std::to_string(status / 100) + "xx"}}).Increment();
}
void Probe::step_done(double seconds, int64_t tokens) {
  steps_.Increment();
  if (std::isfinite(seconds) && seconds > 0) step_seconds_.Increment(seconds);
  if (tokens > 0) tokens_.Increment(static_cast<double>(tokens));
}
void Probe::checkpoint_committed() {
  checkpoints_.Increment();
}
void Probe::job_ended(JobPhase phase) {
  ended_.Add({{"state", std::string(phase_name(phase))}}).Increment();
}
void Probe::store_failed() {
  store_failures_.Increment();
}
void Probe::probe_sent() {
  probes_.Increment();
}
void Probe::probe_answered(const char* outcome) {
  probe_results_.Add({{"outcome", outcome}}).Increment();
}
void Probe::traffic_told(const char* outcome) {
  traffic_.Add({{"outcome", outcome}}).Increment();
}
void Probe::links_known(size_t directions) {
  links_.Set(static_cast<double>(directions));
}
void Probe::loop_took(double seconds) {
  loop_seconds_.Increment(seconds);
  loop_events_.Increment();
}

std::string Probe::text(const State& state) {
  for (uint8_t i = 0; i < 7; ++i) {
    double peers = 0, jobs = 0;
    for (const auto& [id, peer] : state.peers) peers += peer.phase == static_cast<PeerPhase>(i);
    for (const auto& [id, job] : state.jobs) jobs += job.phase == static_cast<JobPhase>(i);
    peers_.Add({{"state", std::string(phase_name(static_cast<PeerPhase>(i)))}}).Set(peers);
    jobs_.Add({{"state", std::string(phase_name(static_cast<JobPhase>(i)))}}).Set(jobs);
  }
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace weft::broker
