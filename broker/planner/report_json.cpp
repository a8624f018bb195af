#include "broker/planner/report_json.h"

#include <nlohmann/json.hpp>

namespace weft::broker {

using nlohmann::json;

json report_to_json(const PlanReport& report, const opdag::Graph& graph) {
  json stages = json::array();
  for (size_t s = 0; s < report.plan.stages.size(); ++s) {
    const job::StagePlan& stage = report.plan.stages[s];
    const StagePrediction& row = report.prediction.stages[s];
    json nodes = json::array();
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      if (report.plan.partition.stage_of[i] == static_cast<int32_t>(s)) {
        nodes.push_back(graph.nodes[i].id);
      }
    }
    stages.push_back({{"stage", s},
                      {"peer", stage.replicas.at(0)},
                      {"nodes", std::move(nodes)},
                      {"flops", stage.flops},
                      {"parameter_bytes", stage.parameter_bytes},
                      {"memory_bytes", stage.memory_bytes},
                      {"micro_batches_in_flight", row.in_flight},
                      {"recompute", stage.recompute},
                      {"compute_s", row.compute_s},
                      {"codec_s", row.codec_s},
                      {"send_s", row.send_s},
                      {"receive_s", row.receive_s},
                      {"busy", row.busy}});
  }
  json ways = json::array();
  for (const WayPrediction& way : report.prediction.ways) {
    ways.push_back({{"from", way.from},
                    {"to", way.to},
                    {"bytes", way.bytes},
                    {"wire_bytes", way.wire_bytes},
                    {"codecs", way.codecs},
                    {"encode_s", way.encode_s},
                    {"decode_s", way.decode_s},
                    {"seconds", way.seconds},
                    {"busy", way.busy}});
  }
  json alternatives = json::array();
  for (const PlanAlternative& other : report.alternatives) {
    alternatives.push_back({{"what", other.what},
                            {"peers", other.peers},
                            {"step_s", other.step_s},
                            {"pace_s", other.pace_s}});
  }
  json left_out = json::array();
  for (const PlanLeftOut& left : report.left_out) {
    left_out.push_back({{"peer", left.peer}, {"why", left.why}});
  }
  return {{"plan", job::plan_to_json(report.plan)},
          {"reason", report.plan.reason},
          {"timed", report.timed},
          {"step_s", report.prediction.step_s},
          {"pace_s", report.pace_s},
          {"shared_weights_s", report.prediction.tie_s},
          {"micro_batches", report.micro_batches},
          {"bottleneck", report.bottleneck},
          {"compression", report.compression},
          {"stages", std::move(stages)},
          {"ways", std::move(ways)},
          {"alternatives", std::move(alternatives)},
          {"left_out", std::move(left_out)},
          {"sites", report.sites},
          {"notes", report.notes}};
}

}  // namespace weft::broker
