#include "executor/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "base/rng.h"
#include "opdag/op_table.h"

namespace weft::executor {

using opdag::kNone;

namespace {

enum class Tensors { kNone, kOne, kList };

// Tensor and Tensor?, Tensor[] and Tensor?[].
Tensors tensors_of(const c10::Argument& argument) {
  const auto inner = [](const c10::Type& type) -> const c10::Type& {
    return type.kind() == c10::TypeKind::OptionalType
               ? *type.expectRef<c10::OptionalType>().getElementType()
               : type;
  };
  const c10::Type& type = inner(*argument.type());
  if (type.kind() == c10::TypeKind::TensorType) return Tensors::kOne;
  if (type.kind() != c10::TypeKind::ListType) return Tensors::kNone;
  const c10::Type& element = inner(*type.expectRef<c10::ListType>().getElementType());
  return element.kind() == c10::TypeKind::TensorType ? Tensors::kList : Tensors::kNone;
}

}  // namespace

class Program::Compiler {
 public:
  Compiler(const opdag::Graph& graph, const ProgramSpec& spec) : graph_(graph), spec_(spec) {}

  Result<Program> compile() {
    program_.device_ = spec_.device;
    program_.gradients_ = spec_.gradients;
    program_.differentiation_ = spec_.differentiation;
    for (const ProgramInput& input : spec_.inputs) {
      const int32_t slot = new_slot();
      slots_[input] = slot;
      program_.input_slots_.push_back(slot);
    }
    program_.tap_slots_.resize(spec_.taps.size(), kNone);
    order_taps();
    for (int32_t position : spec_.nodes) {
      WEFT_TRY_STATUS(add_taps(position));
      WEFT_TRY_STATUS(add_node(position));
    }
    WEFT_TRY_STATUS(add_taps(INT32_MAX));
    for (opdag::ValueId value : spec_.outputs) {
      WEFT_TRY(int32_t slot, common_slot(value));
      program_.output_slots_.push_back(slot);
    }
    program_.slots_ = static_cast<size_t>(next_slot_);
    if (!tape_serves_) program_.differentiation_ = Differentiation::kAutograd;
    drop_unread();
    for (const Step& step : program_.steps_) {
      if (step.random) program_.draws_.push_back(step.node);
    }
    find_last_uses();
    return std::move(program_);
  }

 private:
  int32_t new_slot() { return next_slot_++; }

  Result<int32_t> common_slot(opdag::ValueId value) const {
    const auto found = slots_.find({value, kNone});
    if (found == slots_.end()) {
      return make_error(Code::kInternal,
                        fmt::format("value {} is neither made in this stage nor received",
                                    graph_.value(value).name));
    }
    return found->second;
  }

  void order_taps() {
    for (size_t i = 0; i < spec_.taps.size(); ++i) tap_order_.push_back(i);
    std::stable_sort(tap_order_.begin(), tap_order_.end(), [this](size_t a, size_t b) {
      return spec_.taps[a].position < spec_.taps[b].position;
    });
  }

  Status add_taps(int32_t before) {
    for (; next_tap_ < tap_order_.size(); ++next_tap_) {
      const Tap& tap = spec_.taps[tap_order_[next_tap_]];
      if (tap.position > before) break;
      WEFT_TRY(int32_t from, common_slot(tap.value));
      program_.tap_slots_[tap_order_[next_tap_]] = add_alias(from);
    }
    return {};
  }

  int32_t add_alias(int32_t from) {
    Step step;
    step.from = from;
    step.results = {{0, new_slot()}};
    program_.steps_.push_back(std::move(step));
    return program_.steps_.back().results[0].second;
  }

  // The slot a node reads a value from; makes the node's own alias where the value fans out.
  Result<int32_t> slot_for(opdag::ValueId value, int32_t position) {
    if (const auto own = slots_.find({value, position}); own != slots_.end()) return own->second;
    WEFT_TRY(int32_t common, common_slot(value));
    if (!spec_.fan_out.contains(value)) return common;
    const int32_t slot = add_alias(common);
    slots_[{value, position}] = slot;
    return slot;
  }

  Status add_node(int32_t position) {
    const opdag::Node& node = graph_.nodes[static_cast<size_t>(position)];
    Step step;
    WEFT_TRY(step.handle, find_operator(node));
    const SlotOf slot_of = [this, position](opdag::ValueId value) {
      return slot_for(value, position);
    };
    WEFT_TRY(step.arguments, compile_arguments(node, *step.handle, spec_.device, slot_of));
    if (spec_.causal.contains(position)) make_causal(step);
    step.node = node.id;
    step.op = node.op;
    step.keep_in_range = node.op == "aten::masked_fill.Scalar";
    plan_gradients(node, step);
    if (const opdag::OpInfo* info = opdag::find_op(node.op)) {
      step.random = opdag::draws_random(node);
      for (std::string_view name : info->writes_buffers) {
        const auto index = step.handle->schema().argumentIndexWithName(name);
        if (index) step.buffer_arguments.push_back(*index);
        step.writes = true;
      }
    }
    if (node.outputs.size() > step.handle->schema().returns().size()) {
      return make_error(Code::kInvalid, fmt::format("node {} names {} outputs, {} has {}", node.id,
                                                    node.outputs.size(), node.op,
                                                    step.handle->schema().returns().size()));
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != kNone) add_result(step, static_cast<int32_t>(i), node.outputs[i]);
    }
    // A node of a group may write through its view: that memory must be shared.
    if (node.op == "aten::view" && node.atomic_group == kNone) {
      step.handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::reshape", "");
    }
    program_.steps_.push_back(std::move(step));
    return {};
  }

  static void make_causal(Step& step) {
    const c10::FunctionSchema& schema = step.handle->schema();
    const auto argument = [&](const char* name) -> ArgTemplate& {
      return step.arguments[static_cast<size_t>(*schema.argumentIndexWithName(name))];
    };
    argument("attn_mask") = ArgTemplate{};
    argument("is_causal") = ArgTemplate{};
    argument("is_causal").constant = true;
  }

  // Which slots the tensors of the call come from. The tape wants each in a slot of its own, and no
  // operator that writes in place.
  void plan_gradients(const opdag::Node& node, Step& step) {
    std::vector<tape::Plan::Argument> flat;
    const auto& schema = step.handle->schema().arguments();
    for (size_t i = 0; i < schema.size(); ++i) {
      const ArgTemplate& argument = step.arguments[i];
      switch (tensors_of(schema[i])) {
        case Tensors::kNone:
          break;
        case Tensors::kOne:
          flat.push_back({i, -1, argument.slots.empty() ? kNone : argument.slots[0]});
          break;
        case Tensors::kList:
          if (argument.kind == ArgTemplate::Kind::kSlot) tape_serves_ = false;
          for (size_t k = 0; k < argument.slots.size(); ++k) {
            flat.push_back({i, static_cast<int32_t>(k), argument.slots[k]});
          }
      }
    }
    if (node.atomic_group != kNone) {
      tape_serves_ = false;
      step.writes = true;
    }
    step.plan = tape::make_plan(*step.handle, step.op, spec_.device.type(), std::move(flat));
  }

  void add_result(Step& step, int32_t position, opdag::ValueId id) {
    const opdag::Value& value = graph_.value(id);
    step.results.emplace_back(position, new_slot());
    slots_[{id, kNone}] = step.results.back().second;
    auto& parts = step.parts.emplace_back();
    auto& named = step.result_slots;
    named.resize(static_cast<size_t>(position) + 1);
    if (value.elements.empty()) named.back() = {step.results.back().second};
    for (size_t i = 0; i < value.elements.size(); ++i) {
      if (value.elements[i] == kNone) continue;
      parts.emplace_back(static_cast<int32_t>(i), new_slot());
      slots_[{value.elements[i], kNone}] = parts.back().second;
      named.back().resize(i + 1, kNone);
      named.back().back() = parts.back().second;
    }
  }

  // Steps for results that nobody reads, such as masks that run as is_causal.
  void drop_unread() {
    std::vector<bool> read(static_cast<size_t>(next_slot_), false);
    for (int32_t slot : program_.output_slots_) read[static_cast<size_t>(slot)] = true;
    for (int32_t slot : program_.tap_slots_) read[static_cast<size_t>(slot)] = true;
    const auto is_read = [&read](const std::pair<int32_t, int32_t>& made) {
      return read[static_cast<size_t>(made.second)];
    };
    std::vector<Step>& steps = program_.steps_;
    std::vector<bool> kept(steps.size(), false);
    for (size_t i = steps.size(); i-- > 0;) {
      const Step& step = steps[i];
      kept[i] = step.writes || std::any_of(step.results.begin(), step.results.end(), is_read) ||
                std::any_of(step.parts.begin(), step.parts.end(), [&](const auto& parts) {
                  return std::any_of(parts.begin(), parts.end(), is_read);
                });
      if (!kept[i]) continue;
      if (step.from != kNone) read[static_cast<size_t>(step.from)] = true;
      for (const ArgTemplate& argument : step.arguments) {
        for (int32_t slot : argument.slots) {
          if (slot != kNone) read[static_cast<size_t>(slot)] = true;
        }
      }
    }
    std::vector<Step> left;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (kept[i]) left.push_back(std::move(steps[i]));
    }
    steps = std::move(left);
  }

  void find_last_uses() {
    std::vector<int32_t> last(program_.slots_, kNone);
    for (size_t i = 0; i < program_.steps_.size(); ++i) {
      const auto now = static_cast<int32_t>(i);
      const Step& step = program_.steps_[i];
      const auto touch = [&](int32_t slot) {
        if (slot != kNone) last[static_cast<size_t>(slot)] = now;
      };
      touch(step.from);
      for (const ArgTemplate& argument : step.arguments) {
        for (int32_t slot : argument.slots) touch(slot);
      }
      for (const auto& [position, slot] : step.results) touch(slot);
      for (const auto& parts : step.parts) {
        for (const auto& [element, slot] : parts) touch(slot);
      }
    }
    for (int32_t slot : program_.output_slots_) last[static_cast<size_t>(slot)] = kNone;
    for (int32_t slot : program_.tap_slots_) last[static_cast<size_t>(slot)] = kNone;
    for (size_t slot = 0; slot < last.size(); ++slot) {
      if (last[slot] == kNone) continue;
      program_.steps_[static_cast<size_t>(last[slot])].drops.push_back(static_cast<int32_t>(slot));
    }
  }

  const opdag::Graph& graph_;
  const ProgramSpec& spec_;
  Program program_;
  std::map<ProgramInput, int32_t> slots_;
  int32_t next_slot_ = 0;
  std::vector<size_t> tap_order_;
  size_t next_tap_ = 0;
  bool tape_serves_ = true;
};

Result<Program> Program::compile(const opdag::Graph& graph, const ProgramSpec& spec) {
  try {
    return Compiler(graph, spec).compile();
  } catch (const std::exception& error) {
    return make_error(Code::kInternal,
                      fmt::format("compiling the stage: {}", exception_text(error)));
  }
}

namespace {

// Seed and draw must be one step: several stages of one process share the default generator.
std::mutex& draw_mutex() {
  static std::mutex mutex;
  return mutex;
}

void seed_generator(at::Device device, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

// self, mask, value
void keep_in_range(torch::jit::Stack& stack) {
  const auto type = stack[0].toTensor().scalar_type();
  if (type != at::kBFloat16 && type != at::kHalf) return;
  const double most = type == at::kHalf ? double{std::numeric_limits<c10::Half>::max()}
                                        : double{std::numeric_limits<c10::BFloat16>::max()};
  if (stack[2].isDouble() && std::isfinite(stack[2].toDouble())) {
    stack[2] = std::clamp(stack[2].toDouble(), -most, most);
  }
}

}  // namespace

void Program::call(const Step& step, torch::jit::Stack& stack, tape::Tape* tape) const {
  if (tape != nullptr && tape->carries_any(step.plan)) {
    tape->call(*step.handle, step.plan, step.result_slots, stack);
  } else {
    step.handle->callBoxed(stack);
  }
}

uint64_t Program::seed_of(opdag::NodeId node, const RunContext& context) {
  return derive_seed({context.seed, static_cast<uint64_t>(context.step),
                      static_cast<uint64_t>(context.micro_batch), static_cast<uint64_t>(node)});
}

void Program::run_step(const Step& step, std::vector<at::IValue>& frame, tape::Tape* tape,
                       const RunContext& context) const {
  if (!step.handle) {
    const int32_t to = step.results[0].second;
    const at::Tensor& from = frame[static_cast<size_t>(step.from)].toTensor();
    frame[static_cast<size_t>(to)] = tape != nullptr ? from : at::alias(from);
    if (tape != nullptr) tape->alias(step.from, to);
    return;
  }
  torch::jit::Stack stack;
  stack.reserve(std::max(step.arguments.size(), step.results.size()));
  for (const ArgTemplate& argument : step.arguments) stack.push_back(materialize(argument, frame));
  if (!context.write_buffers) {
    for (int32_t index : step.buffer_arguments) {
      at::IValue& buffer = stack[static_cast<size_t>(index)];
      if (buffer.isTensor()) buffer = buffer.toTensor().clone();
    }
  }
  if (step.keep_in_range) keep_in_range(stack);
  if (step.random) {
    const std::lock_guard<std::mutex> drawing(draw_mutex());
    if (context.draw) {
      context.draw([&] { call(step, stack, tape); });
    } else {
      seed_generator(device_, seed_of(step.node, context));
      call(step, stack, tape);
    }
  } else {
    call(step, stack, tape);
  }
  for (size_t i = 0; i < step.results.size(); ++i) {
    at::IValue& result = stack[static_cast<size_t>(step.results[i].first)];
    if (!step.parts[i].empty()) {
      const auto list = result.toTensorList();
      for (const auto& [element, slot] : step.parts[i]) {
        frame[static_cast<size_t>(slot)] = at::Tensor(list.get(static_cast<size_t>(element)));
      }
    }
    frame[static_cast<size_t>(step.results[i].second)] = std::move(result);
  }
}

Program::Values Program::collect(const std::vector<at::IValue>& frame) const {
  Values values;
  for (int32_t slot : output_slots_) values.outputs.push_back(frame[static_cast<size_t>(slot)]);
  for (int32_t slot : tap_slots_) {
    values.taps.push_back(frame[static_cast<size_t>(slot)].toTensor());
  }
  return values;
}

// Without what autograd has kept for a backward.
Program::Values Program::detached(Values values) {
  for (at::IValue& output : values.outputs) {
    if (output.isTensor() && output.toTensor().defined()) output = output.toTensor().detach();
  }
  for (at::Tensor& tap : values.taps) tap = tap.detach();
  return values;
}

Result<Program::Values> Program::run(std::vector<at::IValue> inputs,
                                     const RunContext& context) const {
  WEFT_CHECK(inputs.size() == input_slots_.size());
  WEFT_CHECK(gradients_.empty() || gradients_.size() == inputs.size());
  const bool differentiate = !gradients_.empty();
  std::unique_ptr<tape::Tape> tape;
  std::unique_ptr<AutogradRecording> autograd;
  if (differentiate && differentiation_ == Differentiation::kTape) {
    tape = std::make_unique<tape::Tape>(slots_, context.record);
  } else if (differentiate) {
    autograd = std::make_unique<AutogradRecording>(inputs.size());
  }
  const at::AutoGradMode gradients(autograd != nullptr);
  std::vector<at::IValue> frame(slots_);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int32_t slot = input_slots_[i];
    if (differentiate && gradients_[i] && tape) tape->want(slot);
    frame[static_cast<size_t>(slot)] = differentiate && gradients_[i] && autograd
                                           ? autograd->leaf(i, inputs[i].toTensor())
                                           : std::move(inputs[i]);
  }
  inputs.clear();
  std::optional<tape::Tape::Below> below;
  if (!autograd) below.emplace();
  const Step* current = nullptr;
  try {
    for (const Step& step : steps_) {
      current = &step;
      run_step(step, frame, tape.get(), context);
      for (int32_t slot : step.drops) frame[static_cast<size_t>(slot)] = at::IValue();
    }
    Values values = collect(frame);
    if (!context.record) return detached(std::move(values));
    if (tape) {
      tape->finish(input_slots_, output_slots_, tap_slots_);
      values.recording = std::move(tape);
    } else if (autograd) {
      std::vector<at::Tensor> outputs;
      for (const at::IValue& output : values.outputs) {
        outputs.push_back(output.isTensor() ? output.toTensor() : at::Tensor());
      }
      autograd->finish(std::move(outputs), values.taps);
      values.recording = std::move(autograd);
    }
    return values;
  } catch (const std::exception& error) {
    Error failure =
        make_error(Code::kInvalid,
                   fmt::format("{} (node {}) failed: {}", current ? current->op : "stage",
                               current ? current->node : kNone, exception_text(error)),
                   "check that the inputs have the shapes and ranges the model was exported with");
    if (current != nullptr) {
      failure.node = std::to_string(current->node);
      failure.op = current->op;
    }
    return failure;
  }
}

}  // namespace weft::executor
