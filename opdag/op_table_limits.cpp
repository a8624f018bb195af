// Argument limits: what a stranger's graph may ask of a volunteer's machine. The shapes a graph
// declares for its results are its own word, so the arguments that decide the true sizes are
// checked against them; what remains is bounded by the memory limit of the worker's process.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "opdag/cost_view.h"
#include "opdag/op_table.h"

namespace weft::opdag {
namespace {

constexpr double kMaxElements = 0x1p34;  // of one tensor: 64 GiB of float32
constexpr double kMaxFlops = 1e18;       // of one node, forward: hours of a fast GPU
constexpr int64_t kMaxWindow = 1 << 16;  // kernel sizes, strides, dilations, paddings
constexpr size_t kMaxListItems = 1 << 16;
constexpr size_t kMaxTextBytes = 4096;

Error over(const NodeView& view, Code code, std::string message, std::string next) {
  const Node& node = view.node();
  Error error =
      make_error(code, fmt::format("node {} ({}): {}", node.id, node.op, message), std::move(next));
  error.node = fmt::format("{}", node.id);
  error.op = node.op;
  return error;
}
Error wrong(const NodeView& view, std::string message) {
  return over(view, Code::kInvalid, std::move(message), "export the model again");
}
Error large(const NodeView& view, std::string message) {
  return over(view, Code::kTooLarge, std::move(message), "use a smaller batch or model");
}

template <size_t N>
bool one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Status check_sizes(const NodeView& view) {
  for (const NamedArgument& argument : view.node().arguments) {
    size_t items = 0;
    if (const auto* ids = std::get_if<ValueListArg>(&argument.value)) items = ids->ids.size();
    if (const auto* ints = std::get_if<IntListArg>(&argument.value)) items = ints->items.size();
    if (const auto* floats = std::get_if<FloatListArg>(&argument.value)) {
      items = floats->items.size();
    }
    if (items > kMaxListItems) {
      return large(view, fmt::format("{} has {} items", argument.name, items));
    }
    const auto* text = std::get_if<std::string>(&argument.value);
    if (text != nullptr && text->size() > kMaxTextBytes) {
      return large(view, fmt::format("{} is {} bytes of text", argument.name, text->size()));
    }
  }
  for (const TensorMeta* meta : view.outputs()) {
    if (elements(meta) > kMaxElements) {
      return large(view,
                   fmt::format("makes a tensor of {:.3g} elements; at most {:.3g} are allowed",
                               elements(meta), kMaxElements));
    }
  }
  return {};
}

// Windows of convolutions and pools: positive, bounded.
Status check_windows(const NodeView& view) {
  constexpr std::array<std::string_view, 6> kPositive = {
      "kernel_size", "stride", "dilation", "groups", "num_groups", "downscale_factor"};
  constexpr std::array<std::string_view, 2> kNatural = {"padding", "output_padding"};
  const bool windowed = view.base().find("conv") != std::string_view::npos ||
                        view.base().find("pool") != std::string_view::npos ||
                        view.base() == "im2col" || view.base() == "col2im" ||
                        view.base().ends_with("group_norm") ||
                        view.base().find("shuffle") != std::string_view::npos;
  if (!windowed) return {};
  for (const NamedArgument& argument : view.node().arguments) {
    const bool positive = one_of(argument.name, kPositive);
    if (!positive && !one_of(argument.name, kNatural)) continue;
    for (int64_t value : view.integers(argument.name)) {
      if (value < (positive ? 1 : 0) || value > kMaxWindow) {
        return wrong(view, fmt::format("{} is {}; {} to {} are allowed", argument.name, value,
                                       positive ? 1 : 0, kMaxWindow));
      }
    }
  }
  return {};
}

std::optional<double> product(const std::vector<int64_t>& factors) {
  double result = 1;
  for (int64_t factor : factors) {
    if (factor < 0) return std::nullopt;
    result *= static_cast<double>(factor);
  }
  return result;
}

// Elements that the arguments of a node ask for, where they alone decide.
std::optional<double> elements_asked(const NodeView& view) {
  const std::string_view base = view.base();
  if (base == "arange") {
    const double start = view.number("start").value_or(0);
    const double end = view.number("end").value_or(NAN);
    const double step = view.number("step").value_or(1);
    if (std::isnan(end) || step == 0) return std::nullopt;
    return std::max(0.0, std::ceil((end - start) / step));
  }
  if (base == "range") {
    const double step = view.number("step").value_or(1);
    if (step == 0) return std::nullopt;
    return std::floor((view.number("end").value_or(0) - view.number("start").value_or(0)) / step) +
           1;
  }
  if (base == "linspace" || base == "logspace") return view.number("steps");
  if (base.ends_with("_window")) return view.number("window_length");
  if (base == "fft_fftfreq") return view.number("n");
  if (base == "fft_rfftfreq") return std::floor(view.number("n").value_or(0) / 2) + 1;
  if (base == "histc") return view.number("bins").value_or(100);
  if (base == "randperm") return view.number("n");
  if (base == "eye") {
    const auto n = view.number("n");
    return n ? std::optional(*n * view.number("m").value_or(*n)) : std::nullopt;
  }
  constexpr std::array<std::string_view, 11> kSized = {
      "full",      "zeros",    "ones",     "rand",         "randn",      "randint",
      "new_zeros", "new_ones", "new_full", "broadcast_to", "expand_copy"};
  if (one_of(base, kSized)) return product(view.integers("size"));
  if (base == "repeat") {
    const auto times = product(view.integers("repeats"));
    return times ? std::optional(*times * elements(view.first_tensor())) : std::nullopt;
  }
  if (base == "tile") {
    const auto times = product(view.integers("dims"));
    return times ? std::optional(*times * elements(view.first_tensor())) : std::nullopt;
  }
  if (base == "repeat_interleave") {
    const auto times = view.number("repeats");
    return times ? std::optional(*times * elements(view.first_tensor())) : std::nullopt;
  }
  if (base == "one_hot") {
    const auto classes = view.number("num_classes");
    return classes ? std::optional(*classes * elements(view.first_tensor())) : std::nullopt;
  }
  return std::nullopt;
}

// Shape after broadcasting; nullopt: the shapes do not fit.
std::optional<std::vector<int64_t>> broadcast(const std::vector<const TensorMeta*>& metas) {
  std::vector<int64_t> shape;
  for (const TensorMeta* meta : metas) {
    const auto& sizes = meta->sizes;
    if (sizes.size() > shape.size()) shape.insert(shape.begin(), sizes.size() - shape.size(), 1);
    for (size_t i = 0; i < sizes.size(); ++i) {
      int64_t& size = shape[shape.size() - sizes.size() + i];
      if (size != sizes[i] && size != 1 && sizes[i] != 1) return std::nullopt;
      if (size == 1) size = sizes[i];
    }
  }
  return shape;
}

// Operators that work element by element over all their tensors, broadcast together.
constexpr std::array<std::string_view, 48> kPointwise = {
    "__and__",   "__or__",      "__xor__",    "add",         "addcdiv",    "addcmul",
    "atan2",     "bitwise_and", "bitwise_or", "bitwise_xor", "clamp",      "clamp_max",
    "clamp_min", "copysign",    "div",        "divide",      "eq",         "floor_divide",
    "fmax",      "fmin",        "fmod",       "ge",          "gt",         "hypot",
    "le",        "lerp",        "logaddexp",  "logical_and", "logical_or", "logical_xor",
    "lt",        "masked_fill", "maximum",    "minimum",     "mul",        "multiply",
    "ne",        "not_equal",   "pow",        "remainder",   "rsub",       "sub",
    "subtract",  "true_divide", "where",      "xlogy",       "greater",    "less"};

Status check_shapes(const NodeView& view) {
  const TensorMeta* out = view.output();
  if (out == nullptr) return {};
  const auto asked = elements_asked(view);
  if (asked && *asked != elements(out)) {
    return wrong(
        view, fmt::format("asks for {:.6g} elements and declares {:.6g}", *asked, elements(out)));
  }
  if (one_of(view.base(), kPointwise)) {
    const auto shape = broadcast(view.tensors());
    if (!shape || *shape != out->sizes) {
      return wrong(view, "the declared shape is not what its inputs broadcast to");
    }
  }
  if (view.base() == "grouped_mm") {
    const TensorMeta *rows = view.tensor("input"), *groups = view.tensor("weight"),
                     *ends = view.tensor("offs");
    const bool fit = rows != nullptr && groups != nullptr && ends != nullptr &&
                     rows->sizes.size() == 2 && groups->sizes.size() == 3 &&
                     ends->sizes == std::vector<int64_t>{groups->sizes[0]} &&
                     rows->sizes[1] == groups->sizes[1] &&
                     out->sizes == std::vector<int64_t>{rows->sizes[0], groups->sizes[2]};
    if (!fit) return wrong(view, "the shapes of its factors and of its result do not fit");
  }
  if (view.base() == "linear" || view.base() == "mm" || view.base() == "addmm" ||
      view.base() == "bmm" || view.base() == "baddbmm") {
    // rows x columns, whatever the leading dimensions.
    const bool linear = view.base() == "linear";
    const TensorMeta* left = view.tensor(linear                     ? "input"
                                         : view.base() == "addmm"   ? "mat1"
                                         : view.base() == "baddbmm" ? "batch1"
                                                                    : "self");
    const TensorMeta* right = view.tensor(linear                     ? "weight"
                                          : view.base() == "baddbmm" ? "batch2"
                                                                     : "mat2");
    if (left == nullptr || right == nullptr) return wrong(view, "a factor is missing");
    const auto& a = left->sizes;
    const auto& b = right->sizes;
    const bool vector = linear && b.size() == 1;
    if (a.empty() || b.empty() || (!vector && b.size() < 2)) {
      return wrong(view, "a factor has too few dimensions");
    }
    std::vector<int64_t> shape(a.begin(), a.end() - 1);
    if (!vector) shape.push_back(linear ? b[0] : b.back());
    const int64_t inner = linear ? b.back() : b[b.size() - 2];
    if (shape != out->sizes || a.back() != inner) {
      return wrong(view, "the shapes of its factors and of its result do not fit");
    }
  }
  return {};
}

Status check_values(const NodeView& view, const OpInfo& info) {
  if (!info.dropout_p.empty()) {
    const auto p = view.number(info.dropout_p);
    if (p && !(*p >= 0 && *p <= 1)) {
      return wrong(view, fmt::format("{} is {}; it is a probability", info.dropout_p, *p));
    }
  }
  const std::string_view base = view.base();
  if (base == "one_hot" && view.integer("num_classes").value_or(-1) < 1) {
    return over(view, Code::kRefused, "one_hot without a number of classes depends on the data",
                "give num_classes to torch.nn.functional.one_hot and export again");
  }
  if ((base == "split" || base == "unsafe_split") && view.integer("split_size").value_or(1) < 1) {
    return wrong(view, fmt::format("split_size is {}", *view.integer("split_size")));
  }
  if (base == "chunk" || base == "unsafe_chunk" || base == "tensor_split") {
    const char* name = base == "tensor_split" ? "sections" : "chunks";
    const int64_t parts = view.integer(name).value_or(1);
    if (parts < 1 || parts > static_cast<int64_t>(kMaxListItems)) {
      return wrong(view, fmt::format("{} is {}", name, parts));
    }
  }
  if (base == "slice" && view.integer("step").value_or(1) < 1) {
    return wrong(view, fmt::format("step is {}", *view.integer("step")));
  }
  if (base.starts_with("fft_") || base == "linalg_vander") {
    // Lengths that pad: of one dimension, or of each transformed one.
    const auto padded = product(view.integers(view.node().find("s") != nullptr   ? "s"
                                              : view.node().find("N") != nullptr ? "N"
                                                                                 : "n"));
    if (padded && *padded > kMaxElements) {
      return large(view, fmt::format("pads to {:.3g} elements", *padded));
    }
  }
  if (base == "mvlgamma" || base == "special_multigammaln") {
    if (const int64_t p = view.integer("p").value_or(1); p < 1 || p > kMaxWindow) {
      return wrong(view, fmt::format("p is {}; 1 to {} are allowed", p, kMaxWindow));
    }
  }
  if (base == "einsum") {
    const auto points = view.einsum_points();
    if (!points) return wrong(view, "its equation does not fit its operands");
    if (*points > kMaxFlops / 2) return large(view, fmt::format("{:.3g} products", *points));
  }
  const Argument* device = view.node().find("device");
  if (const auto* named = device ? std::get_if<DeviceArg>(device) : nullptr) {
    if (named->device.size() > 16 || named->device == "meta") {
      return wrong(view, fmt::format("device '{}'", named->device.substr(0, 16)));
    }
  }
  return {};
}

}  // namespace

Status check_limits(const Graph& graph, const Node& node) {
  const OpInfo* info = find_op(node.op);
  if (info == nullptr) return refused_op(node);
  const NodeView view(graph, node);
  WEFT_TRY_STATUS(check_sizes(view));
  WEFT_TRY_STATUS(check_windows(view));
  WEFT_TRY_STATUS(check_values(view, *info));
  WEFT_TRY_STATUS(check_shapes(view));
  const Cost cost = node_cost(graph, node);
  if (!(cost.flops_forward <= kMaxFlops)) {
    return large(view, fmt::format("{:.3g} FLOPs; at most {:.3g} are allowed", cost.flops_forward,
                                   kMaxFlops));
  }
  return {};
}

}  // namespace weft::opdag
