#include "executor/capture/captured_program.h"

#include <spdlog/spdlog.h>

#include <array>
#include <map>
#include <utility>

namespace weft::executor {
namespace {

bool same_place(const at::Tensor& a, const at::Tensor& b) {
  return a.data_ptr() == b.data_ptr() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type();
}

bool same_form(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type() && a.device() == b.device();
}

// Nobody else reads or writes its memory.
bool is_ours_alone(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1 &&
         tensor.storage().nbytes() == tensor.nbytes();
}

at::Tensor at_fixed_place(const at::Tensor& tensor) {
  at::Tensor fixed = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
  return fixed.copy_(tensor);
}

// Copies between tensors of the same forms: one launch for all of an element type, since a stage
// may have hundreds of small ones.
class Copies {
 public:
  void add(const at::Tensor& to, const at::Tensor& from) {
    auto& [destinations, sources] = by_type_[to.scalar_type()];
    destinations.push_back(to);
    sources.push_back(from);
  }
  at::Tensor clone(const at::Tensor& tensor) {
    at::Tensor result = at::empty_like(tensor);
    add(result, tensor);
    return result;
  }
  void run() {
    for (auto& [type, lists] : by_type_) at::_foreach_copy_(lists.first, lists.second);
    by_type_.clear();
  }

 private:
  std::map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> by_type_;
};

// Gradients of stable inputs that share their memory with no other.
std::vector<bool> lendable(const std::vector<at::Tensor>& gradients,
                           const std::vector<bool>& stable) {
  std::map<const void*, int> users;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined()) ++users[gradient.storage().data()];
  }
  std::vector<bool> result(gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    result[i] = stable[i] && gradients[i].defined() && users[gradients[i].storage().data()] == 1;
  }
  return result;
}

}  // namespace

struct CapturedProgram::Pass {
  std::unique_ptr<GraphSpace> space;
  std::vector<at::Tensor> inputs;  // as captured: stable ones are the caller's own
  std::unique_ptr<DeviceGraph> forward;
  Program::Values values;  // where the forward graph leaves them; its recording until captured
  std::vector<Seed> seeds;
  // The backward: one part, or two (recording.h).
  struct Part {
    std::unique_ptr<DeviceGraph> graph;
    std::vector<at::Tensor> gradients;
    std::vector<bool> lent;  // those that are given away as they lie
  };
  std::array<Part, 2> parts;
  bool busy = false;

  bool takes(const std::vector<at::IValue>& given, const std::vector<bool>& stable) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor& tensor = given[i].toTensor();
      if (!(stable[i] ? same_place(inputs[i], tensor) : same_form(inputs[i], tensor))) return false;
    }
    return true;
  }
};

class CapturedProgram::PassRecording final : public Recording {
 public:
  PassRecording(CapturedProgram& owner, Pass& pass, const RunContext& context)
      : owner_(owner), pass_(pass), context_(context) {}
  ~PassRecording() override { pass_.busy = false; }

  bool borrows() const override { return true; }

  std::vector<at::Tensor> backward(std::vector<Seed> seeds) override {
    auto gradients = run(
        0, seeds, [](Recording& tape, std::vector<Seed> given) { return tape.backward(given); });
    pass_.values.recording.reset();
    return gradients;
  }

  std::vector<at::Tensor> backward_first(std::vector<Seed> seeds,
                                         const std::vector<bool>& first) override {
    first_ = first;
    return run(0, seeds, [&](Recording& tape, std::vector<Seed> given) {
      return tape.backward_first(std::move(given), first);
    });
  }

  std::vector<at::Tensor> backward_rest() override {
    if (plain_) return plain_->backward_rest();
    std::vector<Seed> none;
    auto gradients =
        run(1, none, [](Recording& tape, std::vector<Seed>) { return tape.backward_rest(); });
    pass_.values.recording.reset();
    return gradients;
  }

 private:
  using Play = std::function<std::vector<at::Tensor>(Recording&, std::vector<Seed>)>;

  std::vector<at::Tensor> run(size_t index, std::vector<Seed>& seeds, const Play& play) {
    Pass::Part& part = pass_.parts[index];
    if (part.graph) {
      if (index == 0) fill(seeds);
    } else {
      try {
        capture(index, seeds, play);
      } catch (const std::exception& error) {
        owner_.give_up(exception_text(error));
        return again(index, std::move(seeds), play);
      }
    }
    part.graph->replay({});
    std::vector<at::Tensor> result = part.gradients;
    for (size_t i = 0; i < result.size(); ++i) {
      if (!part.lent[i] && result[i].defined()) result[i] = result[i].clone();
    }
    return result;
  }

  void capture(size_t index, const std::vector<Seed>& seeds, const Play& play) {
    if (index == 0) {
      for (const Seed& seed : seeds) {
        pass_.seeds.push_back({seed.tap, seed.index, at_fixed_place(seed.gradient)});
      }
    }
    ++owner_.preparations_;
    Pass::Part& part = pass_.parts[index];
    part.graph = pass_.space->capture(0, [&](const GraphSpace::Draw&) {
      part.gradients = play(*pass_.values.recording, std::vector<Seed>(pass_.seeds));
    });
    part.lent = lendable(part.gradients, owner_.stable_);
  }

  // Kernel by kernel, from the pass's inputs; a second part begins with the first once more.
  std::vector<at::Tensor> again(size_t index, std::vector<Seed> seeds, const Play& play) {
    plain_ = owner_.recording_again(pass_, context_);
    if (index == 1) plain_->backward_first(std::vector<Seed>(pass_.seeds), first_);
    return play(*plain_, std::move(seeds));
  }

  // Which gradients arrive is a matter of the graph, the same for every micro-batch.
  void fill(const std::vector<Seed>& seeds) {
    TORCH_CHECK(seeds.size() == pass_.seeds.size(), "other gradients arrived than were captured");
    for (size_t i = 0; i < seeds.size(); ++i) {
      const Seed& fixed = pass_.seeds[i];
      TORCH_CHECK(seeds[i].tap == fixed.tap && seeds[i].index == fixed.index &&
                      seeds[i].gradient.sizes() == fixed.gradient.sizes(),
                  "other gradients arrived than were captured");
      pass_.seeds[i].gradient.copy_(seeds[i].gradient);
    }
  }

  CapturedProgram& owner_;
  Pass& pass_;
  RunContext context_;
  std::vector<bool> first_;
  std::unique_ptr<Recording> plain_;  // in place of the graphs, after a capture that failed
};

CapturedProgram::CapturedProgram(const Program& program, at::Device device,
                                 std::vector<bool> stable)
    : CapturedProgram(
          program, [device] { return GraphSpace::make(device); }, std::move(stable)) {}

CapturedProgram::CapturedProgram(const Program& program, MakeSpace make_space,
                                 std::vector<bool> stable)
    : program_(program), make_space_(std::move(make_space)), stable_(std::move(stable)) {}

CapturedProgram::~CapturedProgram() = default;

CapturedProgram::Pass* CapturedProgram::free_pass(const std::vector<at::IValue>& inputs) {
  for (auto pass = passes_.begin(); pass != passes_.end();) {
    if (pass->busy) {
      ++pass;
    } else if (pass->takes(inputs, stable_)) {
      return &*pass;
    } else {
      pass = passes_.erase(pass);  // a weight has moved, or its form changed
    }
  }
  return nullptr;
}

Result<Program::Values> CapturedProgram::run(std::vector<at::IValue> inputs,
                                             const RunContext& context) {
  if (!usable_) return program_.run(std::move(inputs), context);
  if (runs_ < kWarmUps) {
    ++runs_;
    ++preparations_;
    return program_.run(std::move(inputs), context);
  }
  const at::NoGradGuard guard;
  Pass* pass = free_pass(inputs);
  if (pass == nullptr) {
    passes_.emplace_back();
    pass = &passes_.back();
    pass->space = make_space_();
    if (pass->space != nullptr) return capture(*pass, std::move(inputs), context);
    passes_.pop_back();
    usable_ = false;
    return program_.run(std::move(inputs), context);
  }
  Copies copies;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!stable_[i]) copies.add(pass->inputs[i], inputs[i].toTensor());
  }
  copies.run();
  return replay(*pass, context);
}

Result<Program::Values> CapturedProgram::capture(Pass& pass, std::vector<at::IValue> inputs,
                                                 const RunContext& context) {
  ++preparations_;
  std::vector<at::IValue> fixed;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& tensor = inputs[i].toTensor();
    pass.inputs.push_back(stable_[i] || is_ours_alone(tensor) ? tensor : at_fixed_place(tensor));
    fixed.emplace_back(pass.inputs.back());
  }
  std::optional<Error> failure;
  try {
    pass.forward = pass.space->capture(program_.draws().size(), [&](const GraphSpace::Draw& draw) {
      RunContext recorded = context;
      recorded.draw = draw;
      auto values = program_.run(std::move(fixed), recorded);
      if (values.ok()) {
        pass.values = std::move(*values);
      } else {
        failure = values.error();
      }
    });
  } catch (const std::exception& error) {
    failure = make_error(Code::kInternal, exception_text(error));
  }
  if (failure) {
    give_up(failure->message);
    passes_.pop_back();
    return program_.run(std::move(inputs), context);
  }
  return replay(pass, context);
}

void CapturedProgram::give_up(const std::string& reason) {
  if (!std::exchange(usable_, false)) return;
  spdlog::warn("this stage is not captured as a CUDA graph, it runs kernel by kernel: {}", reason);
}

// The pass still has its inputs; buffers have been updated by its forward.
std::unique_ptr<Recording> CapturedProgram::recording_again(const Pass& pass,
                                                            const RunContext& context) {
  RunContext again = context;
  again.write_buffers = false;
  auto values = program_.run({pass.inputs.begin(), pass.inputs.end()}, again);
  TORCH_CHECK(values.ok(), values.ok() ? std::string() : values.error().message);
  return std::move(values->recording);
}

// What is given away is copied: the next replay may come before all readers are done.
Program::Values CapturedProgram::replay(Pass& pass, const RunContext& context) {
  pass.busy = true;
  std::vector<uint64_t> seeds;
  for (opdag::NodeId node : program_.draws()) seeds.push_back(Program::seed_of(node, context));
  pass.forward->replay(seeds);
  Program::Values values;
  Copies copies;
  for (const at::IValue& output : pass.values.outputs) {
    values.outputs.push_back(output.isTensor() ? at::IValue(copies.clone(output.toTensor()))
                                               : output);
  }
  for (const at::Tensor& tap : pass.values.taps) values.taps.push_back(copies.clone(tap));
  copies.run();
  values.recording = std::make_unique<PassRecording>(*this, pass, context);
  return values;
}

}  // namespace weft::executor
