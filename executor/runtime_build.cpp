#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <tuple>

#include "executor/capture/capturable.h"
#include "executor/causal_masks.h"
#include "executor/fan_out.h"
#include "executor/runtime_impl.h"
#include "executor/weights.h"
#include "job/work.h"
#include "opdag/derive.h"

namespace weft::executor {

using opdag::LeafKind;

namespace {

Result<at::Tensor> load_leaf(const opdag::Graph& graph, const opdag::Leaf& leaf,
                             const WeightSource& weights, at::Device device) {
  auto bytes = weights(leaf.weight);
  if (!bytes.ok()) return std::move(bytes).error().within(leaf.target);
  return tensor_from_bytes(leaf.weight, *bytes, graph.value(leaf.value).meta.dtype, device);
}

// The arguments of a cross entropy that computes `loss`: logits and integer targets.
std::optional<std::pair<opdag::ValueId, opdag::ValueId>> class_outputs(const opdag::Graph& graph,
                                                                       const opdag::Stage& stage,
                                                                       opdag::ValueId loss) {
  for (int32_t position : stage.nodes) {
    const opdag::Node& node = graph.nodes[static_cast<size_t>(position)];
    if (node.op != "aten::cross_entropy_loss") continue;
    if (std::find(node.outputs.begin(), node.outputs.end(), loss) == node.outputs.end()) continue;
    const auto* logits = node.find("self");
    const auto* targets = node.find("target");
    if (logits == nullptr || targets == nullptr) continue;
    const auto* a = std::get_if<opdag::ValueArg>(logits);
    const auto* b = std::get_if<opdag::ValueArg>(targets);
    if (a == nullptr || b == nullptr) continue;
    if (dtype_can_have_gradient(graph.value(b->id).meta.dtype)) continue;
    return std::make_pair(a->id, b->id);
  }
  return std::nullopt;
}

bool multiplies_matrices(const opdag::Graph& graph, const opdag::Partition& partition,
                         int32_t stage) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (partition.stage_of[i] != stage) continue;
    if (job::op_class_of(graph.nodes[i]) == job::OpClass::kMatrix) return true;
  }
  return false;
}

void bind(StageProgram& target, ProgramSpec& spec, const ProgramInput& input, InputBinding binding,
          bool gradient = false) {
  spec.inputs.push_back(input);
  target.bindings.push_back(binding);
  if (target.train) spec.gradients.push_back(gradient);
}

}  // namespace

Status RuntimeImpl::build(const WeightSource& weights) {
  const opdag::Partition& partition = options_.plan.partition;
  WEFT_TRY_STATUS(opdag::check_partition(graph_, partition));
  parameters_ = find_parameters(graph_, partition, options_.stage);
  WEFT_TRY_STATUS(load_parameters(weights));
  if (graph_.loss_output != opdag::kNone) {
    train_.stage = options_.stage;
    WEFT_TRY_STATUS(build_program(graph_, partition, train_, weights));
    for (auto& [id, edge] : train_.incoming) {
      edge.wire = static_cast<uint32_t>(id);
      edge.from = edge.edge.from;
    }
    for (auto& [id, edge] : train_.outgoing) {
      edge.wire = static_cast<uint32_t>(id);
      edge.to = edge.edge.to;
    }
    if (!options_.keep_gradients) WEFT_TRY_STATUS(make_optimizer());
    if (multiplies_matrices(graph_, partition, options_.stage)) allocate_workspace(device_);
  }
  if (!eval_graph_.nodes.empty()) {
    WEFT_TRY(const auto eval, opdag::eval_partition(graph_, partition, eval_graph_));
    eval_.stage = eval.stage_of(options_.stage);
    if (eval_.stage != opdag::kNone) {
      eval_.train = false;
      WEFT_TRY_STATUS(build_program(eval_graph_, eval.partition, eval_, weights));
      for (auto& [id, edge] : eval_.incoming) {
        const auto& link = eval.links[static_cast<size_t>(id)];
        edge.wire = link.wire;
        edge.from = link.from;
      }
      for (auto& [id, edge] : eval_.outgoing) {
        const auto& link = eval.links[static_cast<size_t>(id)];
        edge.wire = link.wire;
        edge.to = link.to;
      }
    }
  }
  return {};
}

Status RuntimeImpl::load_parameters(const WeightSource& weights) {
  for (Parameter& parameter : parameters_) {
    const opdag::Leaf& leaf = graph_.leaves[static_cast<size_t>(parameter.leaves[0])];
    WEFT_TRY(parameter.value, load_leaf(graph_, leaf, weights, device_));
    if (!parameter.trainable) continue;
    parameter.value.set_requires_grad(true);
    for (const ParameterUse& use : parameter.uses) {
      if (use.stage != options_.stage) continue;
      const auto& sizes = graph_.value(use.value).meta.sizes;
      if (parameter.value.sizes() != at::IntArrayRef(sizes)) {
        return make_error(Code::kRefused,
                          fmt::format("{} is tied to a weight of another shape", parameter.name));
      }
    }
  }
  return {};
}

const Parameter* RuntimeImpl::find_parameter(const std::string& target) const {
  for (const Parameter& parameter : parameters_) {
    for (int32_t leaf : parameter.leaves) {
      if (graph_.leaves[static_cast<size_t>(leaf)].target == target) return &parameter;
    }
  }
  return nullptr;
}

Result<size_t> RuntimeImpl::hold(const opdag::Graph& graph, const opdag::Leaf& leaf,
                                 const WeightSource& weights) {
  const DType dtype = graph.value(leaf.value).meta.dtype;
  for (size_t i = 0; i < held_.size(); ++i) {
    HeldTensor& held = held_[i];
    if (held.kind != leaf.kind) continue;
    const auto& names = held.names;
    if (std::find(names.begin(), names.end(), leaf.target) != names.end()) return i;
  }
  // Buffers of one file are one buffer under two names.
  for (size_t i = 0; &graph == &graph_ && i < held_.size(); ++i) {
    HeldTensor& held = held_[i];
    const opdag::Leaf* other = graph.find_leaf(held.names[0]);
    if (held.kind != leaf.kind || other == nullptr || !(other->weight == leaf.weight)) continue;
    if (held.value.scalar_type() != to_scalar_type(dtype)) continue;
    held.names.push_back(leaf.target);
    held.persistent = held.persistent || leaf.persistent;
    return i;
  }
  HeldTensor held;
  held.kind = leaf.kind;
  held.names = {leaf.target};
  held.persistent = leaf.kind == LeafKind::kBuffer && leaf.persistent;
  WEFT_TRY(held.value, load_leaf(graph, leaf, weights, device_));
  held_.push_back(std::move(held));
  return held_.size() - 1;
}

size_t RuntimeImpl::keep_output(StageProgram& target, opdag::ValueId value) {
  const auto found = std::find(target.outputs.begin(), target.outputs.end(), value);
  if (found != target.outputs.end()) return static_cast<size_t>(found - target.outputs.begin());
  target.outputs.push_back(value);
  return target.outputs.size() - 1;
}

Status RuntimeImpl::bind_leaves(const opdag::Graph& graph, const opdag::Stage& stage,
                                StageProgram& target, ProgramSpec& spec,
                                const WeightSource& weights) {
  using Kind = InputBinding::Kind;
  for (int32_t index : stage.leaves) {
    const opdag::Leaf& leaf = graph.leaves[static_cast<size_t>(index)];
    const ProgramInput common{leaf.value, opdag::kNone};
    if (leaf.kind == LeafKind::kUserInput) {
      bind(target, spec, common, {Kind::kFeed, static_cast<size_t>(index), 0});
      continue;
    }
    const Parameter* parameter =
        leaf.kind == LeafKind::kParameter ? find_parameter(leaf.target) : nullptr;
    if (parameter == nullptr) {
      WEFT_TRY(const size_t held, hold(graph, leaf, weights));
      bind(target, spec, common, {Kind::kHeld, held, 0});
      continue;
    }
    const auto at = static_cast<size_t>(parameter - parameters_.data());
    bind(target, spec, common, {Kind::kParameter, at, 0});
    for (size_t i = 0; target.train && i < parameter->uses.size(); ++i) {
      const ParameterUse& use = parameter->uses[i];
      if (use.value != leaf.value || use.stage != options_.stage) continue;
      bind(target, spec, {leaf.value, use.position}, {Kind::kUse, at, i}, true);
    }
  }
  return {};
}

void RuntimeImpl::bind_incoming(const opdag::Graph& graph, const opdag::Partition& partition,
                                const opdag::Stage& stage, StageProgram& target,
                                ProgramSpec& spec) {
  const bool autocast = autocast_type(options_.train.precision).has_value();
  for (const opdag::Edge& edge : stage.inputs) {
    IncomingEdge incoming;
    incoming.edge = edge;
    incoming.expected = expected_tensor(graph.value(edge.value).meta, autocast);
    const bool gradient = target.train && edge.needs_grad;
    const auto id = static_cast<size_t>(edge.id);
    bind(target, spec, {edge.value, opdag::kNone}, {InputBinding::Kind::kEdge, id, 0}, gradient);
    if (gradient) {
      const auto groups =
          gradient_groups(graph, partition, edge, spec.fan_out.contains(edge.value));
      incoming.groups = groups.size();
      for (size_t part = 1; part < groups.size(); ++part) {
        for (int32_t position : groups[part]) {
          bind(target, spec, {edge.value, position}, {InputBinding::Kind::kEdge, id, part}, true);
        }
      }
    }
    target.incoming[edge.id] = std::move(incoming);
  }
}

void RuntimeImpl::bind_outgoing(const opdag::Graph& graph, const opdag::Partition& partition,
                                const opdag::Stage& stage, StageProgram& target,
                                ProgramSpec& spec) {
  const bool autocast = autocast_type(options_.train.precision).has_value();
  for (const opdag::Edge& edge : stage.outputs) {
    OutgoingEdge outgoing;
    outgoing.edge = edge;
    outgoing.expected = expected_tensor(graph.value(edge.value).meta, autocast);
    if (target.train && edge.needs_grad) {
      for (const auto& group :
           gradient_groups(graph, partition, edge, spec.fan_out.contains(edge.value))) {
        outgoing.taps.push_back(spec.taps.size());
        spec.taps.push_back({edge.value, group.front()});
      }
    } else {
      outgoing.output = keep_output(target, edge.value);
    }
    target.outgoing[edge.id] = std::move(outgoing);
  }
}

void RuntimeImpl::bind_outputs(const opdag::Graph& graph, const opdag::Stage& stage,
                               StageProgram& target) {
  for (int32_t index : stage.graph_outputs) {
    const opdag::Output& output = graph.outputs[static_cast<size_t>(index)];
    if (index == graph.loss_output) {
      target.loss = keep_output(target, output.value);
      const auto classes = target.train ? std::nullopt : class_outputs(graph, stage, output.value);
      if (classes) {
        target.logits = keep_output(target, classes->first);
        target.targets = keep_output(target, classes->second);
      }
    }
    if (options_.keep_outputs && !target.train) {
      target.graph_outputs.emplace_back(output.name, keep_output(target, output.value));
    }
  }
}

Status RuntimeImpl::build_program(const opdag::Graph& graph, const opdag::Partition& partition,
                                  StageProgram& target, const WeightSource& weights) {
  WEFT_TRY(target.stages, opdag::stage_graph(graph, partition));
  WEFT_TRY(const opdag::Stage stage, opdag::extract_stage(graph, partition, target.stage));
  ProgramSpec spec;
  spec.nodes = stage.nodes;
  spec.device = device_;
  spec.differentiation = options_.differentiation;
  spec.causal = causal_attention(graph);
  if (target.train) {
    spec.fan_out = fan_out_values(graph, opdag::values_with_gradient(graph));
  }
  WEFT_TRY_STATUS(bind_leaves(graph, stage, target, spec, weights));
  bind_incoming(graph, partition, stage, target, spec);
  bind_outgoing(graph, partition, stage, target, spec);
  bind_outputs(graph, stage, target);
  for (size_t i = 0; target.train && i < graph.buffer_updates.size(); ++i) {
    const opdag::BufferUpdate& update = graph.buffer_updates[i];
    const opdag::NodeId producer = graph.value(update.value).producer;
    if (producer == opdag::kNone) continue;
    const auto position = static_cast<size_t>(graph.node_index(producer));
    if (partition.stage_of[position] != target.stage) continue;
    const opdag::Leaf* leaf = graph.find_leaf(update.target);
    if (leaf == nullptr || leaf->kind != LeafKind::kBuffer) {
      return make_error(Code::kInvalid, fmt::format("update of unknown buffer {}", update.target));
    }
    WEFT_TRY(const size_t held, hold(graph, *leaf, weights));
    target.buffer_updates.emplace_back(held, keep_output(target, update.value));
  }
  spec.outputs = target.outputs;
  WEFT_TRY(target.program, Program::compile(graph, spec));
  target.present = true;
  plan_recompute(graph, stage, spec, target);
  if (options_.compute == Compute::kWaited) {
    target.waiting =
        std::make_unique<WaitingProgram>(target.program, target.from_edges(), target.loss);
  } else if (target.train && options_.capture && !device_.is_cpu()) {
    capture_program(graph, stage, target);
  }
  return {};
}

void RuntimeImpl::capture_program(const opdag::Graph& graph, const opdag::Stage& stage,
                                  StageProgram& target) {
  std::string reason = why_not_capturable(graph, stage.nodes);
  if (target.program.differentiation() != Differentiation::kTape) reason = "autograd runs it";
  if (target.recompute) reason = "it recomputes";
  if (!reason.empty()) {
    spdlog::info("this stage is not captured as a CUDA graph: {}", reason);
    return;
  }
  std::vector<bool> stable;
  for (const InputBinding& binding : target.bindings) {
    const bool weight =
        binding.kind == InputBinding::Kind::kParameter || binding.kind == InputBinding::Kind::kUse;
    bool held = binding.kind == InputBinding::Kind::kHeld;
    for (const auto& [updated, output] : target.buffer_updates) {
      held = held && updated != binding.index;
    }
    stable.push_back(weight || held);
  }
  target.captured = std::make_unique<CapturedProgram>(target.program, device_, std::move(stable));
}

Status RuntimeImpl::make_optimizer() {
  std::vector<OwnedParameter> owned;
  for (const Parameter& parameter : parameters_) {
    if (owns(parameter)) owned.push_back({parameter.name, parameter.value});
  }
  WEFT_TRY(optimizer_, StageOptimizer::make(options_.train, options_.groups, std::move(owned)));
  return {};
}

}  // namespace weft::executor
