#include <fmt/format.h>

#include <limits>

#include "executor/autocast_guard.h"
#include "executor/runtime_impl.h"

namespace weft::executor {

Result<Progress> RuntimeImpl::receive_activation(const job::Action& action) {
  const IncomingEdge& edge = active().incoming.at(action.edge);
  const auto kind = evaluating_ ? net::MessageKind::kEvalActivation : net::MessageKind::kActivation;
  const auto message = endpoint_.take(key(kind, action.micro_batch, edge.wire, edge.from));
  if (!message) return Progress::kWaiting;
  WEFT_TRY(auto tensor, decode_tensor(*message, edge.expected, *transfer_));
  if (!tensor) {
    return make_error(Code::kCorrupt,
                      fmt::format("{}: an activation cannot be absent", message->key.text()));
  }
  flights_[action.micro_batch].received[action.edge] = std::move(*tensor);
  return Progress::kDone;
}

Result<Progress> RuntimeImpl::receive_gradient(const job::Action& action) {
  const OutgoingEdge& edge = active().outgoing.at(action.edge);
  const auto message =
      endpoint_.take(key(net::MessageKind::kGradient, action.micro_batch, edge.wire, edge.to));
  if (!message) return Progress::kWaiting;
  WEFT_TRY(flights_[action.micro_batch].gradients_received[action.edge],
           decode_bundle(*message, edge.taps.size(), edge.expected, *transfer_));
  return Progress::kDone;
}

Result<std::vector<at::IValue>> RuntimeImpl::gather_inputs(int32_t micro_batch, InFlight& flight) {
  const StageProgram& program = active();
  const opdag::Graph& graph = evaluating_ ? eval_graph_ : graph_;
  for (const auto& [id, edge] : program.incoming) {
    if (flight.received.contains(id)) continue;
    return make_error(Code::kInternal, fmt::format("edge {} was not received", id));
  }
  std::vector<at::IValue> inputs;
  inputs.reserve(program.bindings.size());
  for (const InputBinding& binding : program.bindings) {
    switch (binding.kind) {
      case InputBinding::Kind::kFeed: {
        const opdag::Leaf& leaf = graph.leaves[binding.index];
        WEFT_TRY(const at::Tensor tensor,
                 feed_.input(leaf.target, evaluating_ ? Split::kEval : Split::kTrain,
                             evaluating_ ? 0 : step_, micro_batch));
        const auto dtype = to_scalar_type(graph.value(leaf.value).meta.dtype);
        inputs.emplace_back(transfer_->to_device(tensor.to(dtype).contiguous()));
        break;
      }
      case InputBinding::Kind::kHeld:
        inputs.emplace_back(held_[binding.index].value);
        break;
      case InputBinding::Kind::kParameter:
      case InputBinding::Kind::kUse:
        inputs.emplace_back(parameters_[binding.index].value.detach());
        break;
      case InputBinding::Kind::kEdge:
        inputs.emplace_back(flight.received.at(static_cast<int32_t>(binding.index)));
        break;
    }
  }
  flight.received.clear();
  return inputs;
}

Result<Progress> RuntimeImpl::forward(int32_t micro_batch) {
  WEFT_TRY(const bool current, collect_weights());
  if (!current) return Progress::kWaiting;
  InFlight& flight = flights_[micro_batch];
  WEFT_TRY(std::vector<at::IValue> inputs, gather_inputs(micro_batch, flight));
  const StageProgram& program = active();
  RunContext context = run_context(micro_batch);
  if (program.recompute) {
    flight.inputs = kept_for_second_run(inputs);
    context.record = false;
  }
  const AutocastGuard autocast(autocast_type(options_.train.precision), device_.type());
  WEFT_TRY(Program::Values values, run_program(program, std::move(inputs), context));
  after_forward(micro_batch, flight, values);
  return Progress::kDone;
}

Result<Program::Values> RuntimeImpl::run_program(const StageProgram& program,
                                                 std::vector<at::IValue> inputs,
                                                 const RunContext& context) {
  if (program.waiting) return program.waiting->run(std::move(inputs), context);
  if (program.captured) return program.captured->run(std::move(inputs), context);
  return program.program.run(std::move(inputs), context);
}

void RuntimeImpl::after_forward(int32_t micro_batch, InFlight& flight, Program::Values& values) {
  const StageProgram& program = active();
  const at::NoGradGuard guard;
  for (const auto& [id, edge] : program.outgoing) {
    flight.to_send[id] = edge.taps.empty() ? values.outputs[edge.output].toTensor().detach()
                                           : values.taps[edge.taps[0]].detach();
  }
  for (const auto& [held, output] : program.buffer_updates) {
    HeldTensor& buffer = held_[held];
    // A new tensor: the old one may be saved for a backward still to come.
    buffer.value =
        values.outputs[output].toTensor().detach().to(buffer.value.scalar_type()).clone();
  }
  flight.recording = std::move(values.recording);
  if (program.loss != SIZE_MAX) {
    flight.loss = values.outputs[program.loss].toTensor();
    add_loss(micro_batch, flight.loss.detach().to(at::kDouble).sum());
  }
  if (!evaluating_) return;
  measure_eval(values);
  flight.loss.reset();
  if (program.outgoing.empty()) flights_.erase(micro_batch);
}

// Read once a step: asking the device for a number waits for all it has to do.
void RuntimeImpl::add_loss(int32_t micro_batch, const at::Tensor& loss) {
  if (evaluating_) {
    loss_sum_ += loss.item<double>();
    result_.loss = loss_sum_ / micro_batches_;
    return;
  }
  loss_total_ = loss_total_.defined() ? loss_total_.add_(loss) : loss.clone();
  if (micro_batch + 1 == micro_batches_) loss_read_ = fetch_numbers(loss_total_);
}

void RuntimeImpl::measure_eval(const Program::Values& values) {
  const StageProgram& program = active();
  for (const auto& [name, output] : program.graph_outputs) {
    const at::IValue& value = values.outputs[output];
    if (value.isTensor()) outputs_[name] = value.toTensor().detach();
  }
  if (program.logits == SIZE_MAX || program.waiting) return;
  const at::Tensor logits = values.outputs[program.logits].toTensor();
  const at::Tensor targets = values.outputs[program.targets].toTensor();
  if (logits.dim() != targets.dim() + 1) return;  // class probabilities
  constexpr int64_t kIgnored = -100;              // cross_entropy's default ignore_index
  const at::Tensor counted = targets.ne(kIgnored);
  const at::Tensor right = logits.argmax(logits.dim() > 1 ? 1 : 0).eq(targets).logical_and(counted);
  correct_ += right.sum().item<int64_t>();
  counted_ += counted.sum().item<int64_t>();
  if (counted_ > 0) {
    result_.accuracy = static_cast<double>(correct_) / static_cast<double>(counted_);
  }
}

at::Tensor RuntimeImpl::loss_seed(const at::Tensor& loss) const {
  if (!scaler_) return at::full_like(loss, 1.0 / micro_batches_);
  // As GradScaler.scale does: a loss in half precision may overflow here already.
  return at::full_like(loss, scaler_->now().scale, at::kDouble).to(loss.scalar_type()) /
         micro_batches_;
}

std::vector<Seed> RuntimeImpl::seeds(InFlight& flight) const {
  std::vector<Seed> result;
  if (flight.loss.defined()) {
    result.push_back({false, train_.loss, loss_seed(flight.loss)});
  }
  for (auto& [id, gradients] : flight.gradients_received) {
    const OutgoingEdge& edge = train_.outgoing.at(id);
    for (size_t i = 0; i < edge.taps.size(); ++i) {
      if (gradients[i]) result.push_back({true, edge.taps[i], std::move(*gradients[i])});
    }
  }
  return result;
}

void RuntimeImpl::take_gradients(InFlight& flight, std::vector<at::Tensor> found) {
  const bool borrowed = flight.recording && flight.recording->borrows();
  for (size_t i = 0; i < found.size(); ++i) {
    const InputBinding& binding = train_.bindings[i];
    if (binding.kind == InputBinding::Kind::kUse) {
      Parameter& parameter = parameters_[binding.index];
      ParameterUse& use = parameter.uses[binding.part];
      // Borrowed memory lasts the step where no other micro-batch writes it; a message may last
      // longer.
      const bool lasts = micro_batches_ == 1 && !parameter.shared();
      if (borrowed && !lasts && !use.gradient && found[i].defined()) {
        found[i] = found[i].clone();
      }
      accumulate(use, std::move(found[i]), borrowed);
    } else if (binding.kind == InputBinding::Kind::kEdge && found[i].defined()) {
      flight.gradients_to_send[static_cast<int32_t>(binding.index)][binding.part] =
          std::move(found[i]);
    }
  }
}

// Room for the gradients of a micro-batch that go to other stages: they are messages even where
// none flows.
void RuntimeImpl::expect_gradients_to_send(InFlight& flight) const {
  for (const auto& [id, edge] : train_.incoming) {
    if (edge.edge.needs_grad) flight.gradients_to_send[id].resize(edge.groups);
  }
}

Status RuntimeImpl::backward(int32_t micro_batch) {
  InFlight& flight = flights_.at(micro_batch);
  const at::NoGradGuard guard;
  WEFT_TRY_STATUS(forward_again(micro_batch, flight));
  std::vector<at::Tensor> found;
  if (flight.recording) found = flight.recording->backward(seeds(flight));
  expect_gradients_to_send(flight);
  take_gradients(flight, std::move(found));
  end_backward(micro_batch);
  return {};
}

Status RuntimeImpl::backward_input(int32_t micro_batch) {
  InFlight& flight = flights_.at(micro_batch);
  const at::NoGradGuard guard;
  WEFT_TRY_STATUS(forward_again(micro_batch, flight));
  expect_gradients_to_send(flight);
  flight.owes_weights = true;
  if (!flight.recording) return {};
  take_gradients(flight, flight.recording->backward_first(seeds(flight), train_.from_edges()));
  return {};
}

Status RuntimeImpl::backward_weight(int32_t micro_batch) {
  InFlight& flight = flights_.at(micro_batch);
  const at::NoGradGuard guard;
  if (flight.recording) take_gradients(flight, flight.recording->backward_rest());
  end_backward(micro_batch);
  return {};
}

// What is left of a micro-batch is to be sent.
void RuntimeImpl::end_backward(int32_t micro_batch) {
  InFlight& flight = flights_.at(micro_batch);
  auto gradients = std::move(flight.gradients_to_send);
  flight = InFlight{};
  flight.gradients_to_send = std::move(gradients);
  if (flight.gradients_to_send.empty()) flights_.erase(micro_batch);
}

}  // namespace weft::executor
