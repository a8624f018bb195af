#include "job/plan.h"

#include <fmt/format.h>

#include "job/json_read.h"
#include "job/names.h"

namespace weft::job {
namespace {

using nlohmann::json;

constexpr int32_t kMaxStages = 4096;
constexpr size_t kMaxNodes = 1 << 20;
constexpr int32_t kMaxGap = 1 << 16;

Result<StagePlan> stage_from_json(const json& value) {
  StagePlan stage;
  JsonReader reader(value, "plan.stages[]");
  reader.texts("replicas", stage.replicas, kMaxStages);
  reader.number("flops", stage.flops);
  reader.integer("parameter_bytes", stage.parameter_bytes, 0);
  reader.integer("memory_bytes", stage.memory_bytes, 0);
  reader.number("compute_s", stage.compute_s);
  reader.number("correction", stage.correction);
  reader.number("send_s", stage.send_s);
  reader.number("receive_s", stage.receive_s);
  reader.integer("in_flight", stage.in_flight, 0);
  reader.boolean("recompute", stage.recompute);
  WEFT_TRY_STATUS(reader.status());
  return stage;
}

Status check_partition_form(const Plan& plan) {
  for (size_t i = 0; i < plan.partition.stage_of.size(); ++i) {
    const int32_t stage = plan.partition.stage_of[i];
    if (stage < 0 || stage >= plan.partition.stages) {
      return make_error(Code::kInvalid, fmt::format("plan: node {} is put into stage {} of {}", i,
                                                    stage, plan.partition.stages));
    }
  }
  const size_t stages = static_cast<size_t>(plan.partition.stages);
  if (!plan.stages.empty() && plan.stages.size() != stages) {
    return make_error(Code::kInvalid, fmt::format("plan: {} stages are described, {} are cut",
                                                  plan.stages.size(), stages));
  }
  return {};
}

}  // namespace

json plan_to_json(const Plan& plan) {
  json stages = json::array();
  for (const StagePlan& stage : plan.stages) {
    stages.push_back({{"replicas", stage.replicas},
                      {"flops", number_to_json(stage.flops)},
                      {"parameter_bytes", stage.parameter_bytes},
                      {"memory_bytes", stage.memory_bytes},
                      {"compute_s", number_to_json(stage.compute_s)},
                      {"correction", number_to_json(stage.correction)},
                      {"send_s", number_to_json(stage.send_s)},
                      {"receive_s", number_to_json(stage.receive_s)},
                      {"in_flight", stage.in_flight},
                      {"recompute", stage.recompute}});
  }
  return {{"epoch", plan.epoch},
          {"partition", {{"stages", plan.partition.stages}, {"stage_of", plan.partition.stage_of}}},
          {"stages", std::move(stages)},
          {"schedule", name_of(plan.schedule)},
          {"gap", plan.gap},
          {"step_s", number_to_json(plan.step_s)},
          {"reason", plan.reason}};
}

Result<Plan> plan_from_json(const json& value) {
  Plan plan;
  JsonReader reader(value, "plan");
  reader.integer("epoch", plan.epoch);
  reader.integer("gap", plan.gap, 1, kMaxGap);
  reader.text("reason", plan.reason);
  reader.number("step_s", plan.step_s);
  std::string schedule = name_of(plan.schedule);
  reader.text("schedule", schedule);
  if (const auto known = value_of<PipelineSchedule>(schedule)) {
    plan.schedule = *known;
  } else {
    reader.fail(
        make_error(Code::kInvalid, fmt::format("plan.schedule \"{}\" is unknown", schedule)));
  }
  reader.require("partition");
  if (const json* partition = reader.object("partition")) {
    JsonReader inner(*partition, "plan.partition");
    inner.require("stages");
    inner.require("stage_of");
    inner.integer("stages", plan.partition.stages, 1, kMaxStages);
    inner.integers("stage_of", plan.partition.stage_of, kMaxNodes);
    WEFT_TRY_STATUS(inner.status());
  }
  if (const json* stages = reader.array("stages", kMaxStages)) {
    for (const json& entry : *stages) {
      WEFT_TRY(StagePlan stage, stage_from_json(entry));
      plan.stages.push_back(std::move(stage));
    }
  }
  WEFT_TRY_STATUS(reader.status());
  WEFT_TRY_STATUS(check_partition_form(plan));
  return plan;
}

}  // namespace weft::job
