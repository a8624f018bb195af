#include "simulate/outcome.h"

#include <nlohmann/json.hpp>

namespace weft::simulate {

nlohmann::json outcome_to_json(const Outcome& o) {
  nlohmann::json jobs = nlohmann::json::array();
  for (const JobOutcome& job : o.jobs) {
    jobs.push_back({{"id", job.id},
                    {"name", job.name},
                    {"phase", job.phase},
                    {"reason", job.reason},
                    {"stages", job.stages},
                    {"steps", job.steps},
                    {"wanted", job.wanted},
                    {"computed", job.computed},
                    {"deployments", job.deployments},
                    {"migrations", job.migrations},
                    {"failures", job.failures},
                    {"submitted_s", job.submitted_s},
                    {"started_s", job.started_s},
                    {"ended_s", job.ended_s},
                    {"predicted_step_s", job.predicted_step_s},
                    {"step_s", job.step_s},
                    {"slow_step_s", job.slow_step_s},
                    {"prediction_error", job.error},
                    {"busy", job.busy}});
  }
  return {{"seed", o.seed},
          {"hash", o.hash},
          {"ended_s", o.ended_s},
          {"all_ended", o.all_ended},
          {"peers", o.peers},
          {"most_peers_at_once", o.most_peers_at_once},
          {"departures", o.departures},
          {"farewells", o.farewells},
          {"returns", o.returns},
          {"plans", o.plans},
          {"plans_refused", o.plans_refused},
          {"replans", o.replans},
          {"migrations", o.migrations},
          {"recoveries", o.recoveries},
          {"steps_lost", o.steps_lost},
          {"utilization", o.utilization},
          {"bytes_sent", o.bytes_sent},
          {"bytes_between_sites", o.bytes_between_sites},
          {"events", o.events},
          {"compression", o.compression},
          {"jobs", std::move(jobs)},
          {"notes", o.notes},
          {"wall_s", o.wall_s},
          {"planning_s", o.planning_s}};
}

}  // namespace weft::simulate
