#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <fmt/format.h>

#include <limits>

#include "executor/runtime_impl.h"

namespace weft::executor {

namespace {

// bf16 autocast on this thread while it lives; the weight cache is off, because it would keep
// casts of one micro-batch's graph alive into the next.
class AutocastGuard {
 public:
  AutocastGuard(bool on, at::DeviceType device) : on_(on), device_(device) {
    if (!on_) return;
    enabled_ = at::autocast::is_autocast_enabled(device_);
    dtype_ = at::autocast::get_autocast_dtype(device_);
    cache_ = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~AutocastGuard() {
    if (!on_) return;
    at::autocast::set_autocast_enabled(device_, enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_);
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  bool on_, enabled_ = false, cache_ = true;
  at::DeviceType device_;
  at::ScalarType dtype_ = at::kFloat;
};

// The autograd engine runs on the calling thread while this lives.
class InlineEngine {
 public:
  InlineEngine() : before_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~InlineEngine() { c10::AutogradState::get_tls_state().set_multithreading_enabled(before_); }
  InlineEngine(const InlineEngine&) = delete;
  InlineEngine& operator=(const InlineEngine&) = delete;

 private:
  bool before_;
};

}  // namespace

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
    const auto received = flight.received.find(id);
    if (received == flight.received.end()) {
      return make_error(Code::kInternal, fmt::format("edge {} was not received", id));
    }
    auto& parts = flight.leaves[id];
    for (size_t part = 0; part < edge.groups; ++part) {
      parts.push_back(received->second.detach());
      if (program.train && edge.edge.needs_grad) parts.back().set_requires_grad(true);
    }
  }
  flight.received.clear();
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
        inputs.emplace_back(parameters_[binding.index].value.detach());
        break;
      case InputBinding::Kind::kUse:
        inputs.emplace_back(parameters_[binding.index].uses[binding.part].leaf);
        break;
      case InputBinding::Kind::kEdge:
        inputs.emplace_back(flight.leaves.at(static_cast<int32_t>(binding.index))[binding.part]);
        break;
    }
  }
  return inputs;
}

Result<Progress> RuntimeImpl::forward(int32_t micro_batch) {
  WEFT_TRY(const bool current, collect_weights());
  if (!current) return Progress::kWaiting;
  InFlight& flight = flights_[micro_batch];
  WEFT_TRY(std::vector<at::IValue> inputs, gather_inputs(micro_batch, flight));
  const RunContext context{options_.train.seed, step_, micro_batch, !evaluating_};
  const AutocastGuard autocast(options_.train.precision == job::Precision::kBf16, device_.type());
  const at::AutoGradMode gradients(!evaluating_);
  WEFT_TRY(Program::Values values, active().program.run(std::move(inputs), context));
  after_forward(micro_batch, flight, values);
  return Progress::kDone;
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
  flight.taps = std::move(values.taps);
  if (program.loss != SIZE_MAX) {
    flight.loss = values.outputs[program.loss].toTensor();
    add_loss(micro_batch, flight.loss.detach().to(at::kDouble).sum());
  }
  if (!evaluating_) return;
  measure_eval(values);
  flight.leaves.clear();
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
  if (program.logits == SIZE_MAX) return;
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

Status RuntimeImpl::backward(int32_t micro_batch) {
  InFlight& flight = flights_.at(micro_batch);
  torch::autograd::variable_list roots, seeds, inputs;
  if (flight.loss.defined() && flight.loss.requires_grad()) {
    roots.push_back(flight.loss);
    seeds.push_back(at::full_like(flight.loss, 1.0 / micro_batches_));
  }
  for (auto& [id, gradients] : flight.gradients_received) {
    const OutgoingEdge& edge = train_.outgoing.at(id);
    for (size_t i = 0; i < edge.taps.size(); ++i) {
      const at::Tensor& tap = flight.taps[edge.taps[i]];
      if (!gradients[i] || !tap.requires_grad()) continue;
      roots.push_back(tap);
      seeds.push_back(*gradients[i]);
    }
  }
  for (auto& [id, parts] : flight.leaves) {
    if (!train_.incoming.at(id).edge.needs_grad) continue;
    inputs.insert(inputs.end(), parts.begin(), parts.end());
  }
  for (Parameter& parameter : parameters_) {
    for (ParameterUse& use : parameter.uses) {
      if (use.stage == options_.stage) inputs.push_back(use.leaf);
    }
  }
  torch::autograd::variable_list found(inputs.size());
  if (!roots.empty() && !inputs.empty()) {
    const InlineEngine engine;
    found = torch::autograd::grad(roots, inputs, seeds, /*retain_graph=*/false,
                                  /*create_graph=*/false, /*allow_unused=*/true);
  }
  const at::NoGradGuard guard;
  size_t next = 0;
  for (auto& [id, parts] : flight.leaves) {
    if (!train_.incoming.at(id).edge.needs_grad) continue;
    OptionalTensors& back = flight.gradients_to_send[id];
    for (size_t i = 0; i < parts.size(); ++i) {
      const at::Tensor& gradient = found[next++];
      back.push_back(gradient.defined() ? std::optional<at::Tensor>(gradient) : std::nullopt);
    }
  }
  for (Parameter& parameter : parameters_) {
    for (ParameterUse& use : parameter.uses) {
      if (use.stage == options_.stage) accumulate(use, found[next++]);
    }
  }
  auto gradients = std::move(flight.gradients_to_send);
  if (gradients.empty()) {
    flights_.erase(micro_batch);
  } else {
    flight = InFlight{};
    flight.gradients_to_send = std::move(gradients);
  }
  return {};
}

}  // namespace weft::executor
