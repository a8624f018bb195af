// promote_f64: the same graph in float64.
#include <algorithm>
#include <set>

#include "opdag/derive.h"
#include "opdag/op_table.h"

namespace weft::opdag {
namespace {

constexpr DType kFrom = DType::kFloat32, kTo = DType::kFloat64;

bool integral(DType dtype) {
  return !dtype_is_floating(dtype) && !dtype_is_complex(dtype);
}

// Operators that make a tensor of the default dtype when no dtype is given.
bool makes_default_dtype(const Node& node) {
  static const std::set<std::string_view> kNames = {
      "aten::zeros",         "aten::ones",
      "aten::full",          "aten::empty.memory_format",
      "aten::rand",          "aten::randn",
      "aten::eye",           "aten::linspace",
      "aten::logspace",      "aten::arange",
      "aten::arange.start",  "aten::arange.start_step",
      "aten::scalar_tensor", "aten::normal.float_float",
      "aten::range.step",    "aten::fft_fftfreq",
      "aten::fft_rfftfreq"};
  const bool window = node.op.substr(0, node.op.find('.')).ends_with("_window");
  if (!window && !kNames.contains(node.op)) return false;
  const Argument* dtype = node.find("dtype");
  return dtype == nullptr || std::holds_alternative<NoneArg>(*dtype);
}

class Promotion {
 public:
  explicit Promotion(const Graph& graph) : graph_(graph) {
    for (const Node& node : graph.nodes) next_id_ = std::max(next_id_, node.id + 1);
  }

  Result<Graph> run() {
    std::vector<Node> nodes = std::move(graph_.nodes);
    for (Node& node : nodes) promote(std::move(node));
    graph_.nodes = std::move(out_);
    for (Value& value : graph_.values) {
      if (value.meta.dtype == kFrom && !narrow_.contains(value.id)) value.meta.dtype = kTo;
      if (value.meta.dtype == DType::kComplex64) value.meta.dtype = DType::kComplex128;
    }
    WEFT_TRY_STATUS(validate_structure(graph_));
    return std::move(graph_);
  }

 private:
  void promote(Node node) {
    for (NamedArgument& argument : node.arguments) {
      auto* dtype = std::get_if<DTypeArg>(&argument.value);
      if (dtype != nullptr && dtype->dtype == kFrom) dtype->dtype = kTo;
      if (dtype != nullptr && dtype->dtype == DType::kComplex64) dtype->dtype = DType::kComplex128;
    }
    if (makes_default_dtype(node) && output_is_float32(node)) {
      std::erase_if(node.arguments, [](const auto& argument) { return argument.name == "dtype"; });
      node.arguments.push_back({"dtype", DTypeArg{kTo}});
    } else if (output_is_float32(node) && !names_dtype(node) && only_integers_in(node)) {
      if (!widen_inputs(node)) {
        widen_output(std::move(node));
        return;
      }
    }
    out_.push_back(std::move(node));
  }

  bool output_is_float32(const Node& node) const {
    return std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
      return id != kNone && graph_.value(id).kind == ValueKind::kTensor &&
             graph_.value(id).meta.dtype == kFrom;
    });
  }

  static bool names_dtype(const Node& node) {
    return std::any_of(node.arguments.begin(), node.arguments.end(), [](const auto& argument) {
      return std::holds_alternative<DTypeArg>(argument.value);
    });
  }

  bool only_integers_in(const Node& node) const {
    const std::vector<ValueId> inputs = inputs_of(node);
    return !inputs.empty() && std::all_of(inputs.begin(), inputs.end(), [&](ValueId id) {
      return integral(graph_.value(id).meta.dtype);
    });
  }

  // Arithmetic on integers (7 / 2, 3 * 0.5) gives the default dtype, float32: its operands become
  // float64 first. A condition keeps its type.
  bool widen_inputs(Node& node) {
    bool any = false;
    for (NamedArgument& argument : node.arguments) {
      auto* input = std::get_if<ValueArg>(&argument.value);
      if (input == nullptr || argument.name == "condition" || argument.name == "mask") continue;
      const ValueId narrow = input->id;
      input->id = another(narrow, "_f64", kTo);
      cast(narrow, input->id, node.atomic_group);
      any = true;
    }
    return any;
  }

  // where(condition, 1.0, 0.0) has nothing to widen but its result.
  void widen_output(Node node) {
    const int32_t group = node.atomic_group;
    std::vector<std::pair<ValueId, ValueId>> casts;
    for (ValueId& id : node.outputs) {
      if (id == kNone || graph_.value(id).meta.dtype != kFrom) continue;
      const ValueId wide = id;
      id = another(wide, "_f32", kFrom);
      narrow_.insert(id);
      casts.emplace_back(id, wide);
    }
    out_.push_back(std::move(node));
    for (const auto& [narrow, wide] : casts) cast(narrow, wide, group);
  }

  // A value like `of` with another element type.
  ValueId another(ValueId of, const char* suffix, DType dtype) {
    Value made;
    made.id = static_cast<ValueId>(graph_.values.size());
    made.name = graph_.value(of).name + suffix;
    made.meta = graph_.value(of).meta;
    made.meta.dtype = dtype;
    graph_.values.push_back(std::move(made));
    return graph_.values.back().id;
  }

  void cast(ValueId from, ValueId to, int32_t group) {
    Node node;
    node.id = next_id_++;
    node.op = "aten::to.dtype";
    node.arguments = {{"self", ValueArg{from}}, {"dtype", DTypeArg{kTo}}};
    node.outputs = {to};
    node.atomic_group = group;
    out_.push_back(std::move(node));
  }

  Graph graph_;
  NodeId next_id_ = 0;
  std::set<ValueId> narrow_;  // stays float32
  std::vector<Node> out_;
};

}  // namespace

Result<Graph> promote_f64(const Graph& graph) {
  return Promotion(graph).run();
}

}  // namespace weft::opdag
