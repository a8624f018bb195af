// Recompute (activation checkpointing of a whole stage): a forward leaves no recording, the stage
// keeps what it read, and the forward runs once more, recorded, right before its backward. The
// second run has the bits of the first: the same inputs, weights (they step after the last
// backward), random draws and kernels.
#include <algorithm>
#include <set>
#include <utility>

#include "executor/autocast_guard.h"
#include "executor/runtime_impl.h"

namespace weft::executor {

// What a stage writes in place lies in groups of nodes that no cut parts, so that of the inputs
// only leaves are written: feeds and buffers that such a group reads. Statistics that an operator
// writes without being in a group are read by no other, and it does not read them while it trains.
void RuntimeImpl::plan_recompute(const opdag::Graph& graph, const opdag::Stage& stage,
                                 const ProgramSpec& spec, StageProgram& target) const {
  using Kind = InputBinding::Kind;
  const auto index = static_cast<size_t>(options_.stage);
  const auto& plans = options_.plan.stages;
  const auto& wants = spec.gradients;
  const bool differentiates = std::find(wants.begin(), wants.end(), true) != wants.end();
  target.recompute =
      target.train && differentiates && index < plans.size() && plans[index].recompute;
  std::set<opdag::ValueId> read_by_groups;
  for (int32_t position : stage.nodes) {
    const opdag::Node& node = graph.nodes[static_cast<size_t>(position)];
    if (node.atomic_group == opdag::kNone) continue;
    for (opdag::ValueId id : opdag::inputs_of(node)) read_by_groups.insert(id);
  }
  for (size_t i = 0; target.recompute && i < target.bindings.size(); ++i) {
    const Kind kind = target.bindings[i].kind;
    target.copied.push_back((kind == Kind::kFeed || kind == Kind::kHeld) &&
                            read_by_groups.contains(spec.inputs[i].value));
  }
}

std::vector<at::IValue> RuntimeImpl::kept_for_second_run(
    const std::vector<at::IValue>& inputs) const {
  std::vector<at::IValue> kept = inputs;
  for (size_t i = 0; i < kept.size(); ++i) {
    if (train_.copied[i]) kept[i] = kept[i].toTensor().clone();
  }
  return kept;
}

RunContext RuntimeImpl::run_context(int32_t micro_batch) const {
  RunContext context;
  context.seed = options_.train.seed;
  context.step = step_;
  context.micro_batch = micro_batch;
  context.write_buffers = !evaluating_;
  return context;
}

Status RuntimeImpl::forward_again(int32_t micro_batch, InFlight& flight) {
  if (!train_.recompute) return {};
  RunContext context = run_context(micro_batch);
  context.write_buffers = false;  // the first run has
  const AutocastGuard autocast(autocast_type(options_.train.precision), device_.type());
  WEFT_TRY(Program::Values values, run_program(train_, std::exchange(flight.inputs, {}), context));
  flight.recording = std::move(values.recording);
  return {};
}

}  // namespace weft::executor
