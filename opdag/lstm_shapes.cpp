#include "opdag/lstm_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "opdag/cost_view.h"

namespace weft::opdag {
namespace {

using Sizes = std::vector<int64_t>;

std::optional<size_t> wrapped(std::optional<int64_t> dim, size_t rank) {
  const auto signed_rank = static_cast<int64_t>(rank);
  if (!dim || *dim < -signed_rank || *dim >= signed_rank) return std::nullopt;
  return static_cast<size_t>(*dim < 0 ? *dim + signed_rank : *dim);
}

std::optional<Sizes> broadcast(const std::vector<Sizes>& shapes) {
  Sizes result;
  for (const Sizes& shape : shapes) {
    if (shape.size() > result.size())
      result.insert(result.begin(), shape.size() - result.size(), 1);
    for (size_t i = 0; i < shape.size(); ++i) {
      int64_t& size = result[result.size() - shape.size() + i];
      if (size != shape[i] && size != 1 && shape[i] != 1) return std::nullopt;
      if (size == 1) size = shape[i];
    }
  }
  return result;
}

int64_t product(Sizes::const_iterator from, Sizes::const_iterator to) {
  return std::accumulate(from, to, int64_t{1}, std::multiplies<>());
}

// -1 stands for what is left of the elements.
std::optional<Sizes> reshaped(const Sizes& from, Sizes to) {
  const auto open = std::find(to.begin(), to.end(), -1);
  if (open == to.end()) return to;
  *open = 1;
  const int64_t known = product(to.begin(), to.end());
  if (known <= 0) return std::nullopt;
  *open = product(from.begin(), from.end()) / known;
  return to;
}

int64_t slice_length(const NodeView& view, int64_t size) {
  const auto clamp = [size](int64_t at) {
    return std::clamp(at < 0 ? at + size : at, int64_t{0}, size);
  };
  const int64_t start = clamp(view.integer("start").value_or(0));
  const int64_t end = clamp(view.integer("end").value_or(size));
  const int64_t step = std::max<int64_t>(view.integer("step").value_or(1), 1);
  return end > start ? (end - start + step - 1) / step : 0;
}

// Operators that move, drop or join dimensions of their first tensor.
std::optional<Sizes> after_view(const NodeView& view, Sizes in) {
  const std::string_view op = view.base();
  const size_t rank = in.size();
  if (op == "view" || op == "reshape") {
    return reshaped(in, view.integers(op == "view" ? "size" : "shape"));
  }
  if (op == "permute") {
    Sizes out;
    for (int64_t dim : view.integers("dims")) {
      const auto at = wrapped(dim, rank);
      if (!at) return std::nullopt;
      out.push_back(in[*at]);
    }
    return out.size() == rank ? std::optional(out) : std::nullopt;
  }
  if (op == "unsqueeze") {
    const auto at = wrapped(view.integer("dim"), rank + 1);
    if (!at) return std::nullopt;
    in.insert(in.begin() + static_cast<ptrdiff_t>(*at), 1);
    return in;
  }
  if (op == "transpose" || op == "flatten") {
    const bool flat = op == "flatten";
    const auto a = wrapped(view.integer(flat ? "start_dim" : "dim0").value_or(0), rank);
    const auto b = wrapped(view.integer(flat ? "end_dim" : "dim1").value_or(-1), rank);
    if (!a || !b) return std::nullopt;
    if (!flat) {
      std::swap(in[*a], in[*b]);
      return in;
    }
    const auto from = in.begin() + static_cast<ptrdiff_t>(*a);
    const auto to = in.begin() + static_cast<ptrdiff_t>(*b) + 1;
    const int64_t joined = product(from, to);
    in.insert(in.erase(from, to), joined);
    return in;
  }
  const auto at = wrapped(view.integer("dim").value_or(0), rank);
  if (!at) return std::nullopt;
  const auto place = in.begin() + static_cast<ptrdiff_t>(*at);
  if (op == "slice") {
    *place = slice_length(view, *place);
  } else if (op == "select" || op == "unbind" || *place == 1) {  // or squeeze
    in.erase(place);
  }
  return in;
}

bool is_view(std::string_view op) {
  static const std::set<std::string_view> kNames = {"view",      "reshape",   "permute",
                                                    "unsqueeze", "transpose", "flatten",
                                                    "slice",     "select",    "unbind"};
  return kNames.contains(op);
}

class Correction {
 public:
  explicit Correction(Graph& graph) : graph_(graph) {}

  Status run() {
    for (const Node& node : graph_.nodes) {
      if (node.op == "aten::lstm.input") begin(node);
      const std::vector<ValueId> inputs = inputs_of(node);
      if (std::any_of(inputs.begin(), inputs.end(),
                      [this](ValueId id) { return written_.contains(id); })) {
        WEFT_TRY_STATUS(follow(node));
      }
    }
    return {};
  }

 private:
  // The last states have the shapes of the first ones.
  void begin(const Node& node) {
    const auto* states = node.find("hx") ? std::get_if<ValueListArg>(node.find("hx")) : nullptr;
    for (size_t i = 1; i < node.outputs.size() && states != nullptr; ++i) {
      if (node.outputs[i] == kNone || i > states->ids.size()) continue;
      correct(node.outputs[i], graph_.value(states->ids[i - 1]).meta.sizes);
    }
  }

  Status follow(const Node& node) {
    const auto out = shape_of(node);
    if (!out) {
      Error error = make_error(
          Code::kRefused,
          fmt::format("node {} ({}) works on the last state of an LSTM, whose shape PyTorch's "
                      "export writes wrong; its result's shape cannot be told",
                      node.id, node.op),
          "use the LSTM's outputs in place of its last state (output[-1]), or a GRU");
      error.node = fmt::format("{}", node.id);
      error.op = node.op;
      return error;
    }
    for (ValueId id : node.outputs) {
      if (id == kNone) continue;
      const std::vector<ValueId> parts = graph_.value(id).elements;
      if (parts.empty()) correct(id, *out);
      for (ValueId part : parts) {
        if (part != kNone) correct(part, *out);
      }
    }
    return {};
  }

  void correct(ValueId id, const Sizes& sizes) {
    TensorMeta& meta = graph_.values[static_cast<size_t>(id)].meta;
    if (meta.sizes == sizes) return;
    written_[id] = meta.sizes;
    meta.sizes = sizes;
    meta.strides = contiguous_strides(sizes);
    meta.storage_offset = 0;
  }

  std::optional<Sizes> shape_of(const Node& node) const {
    const NodeView view(graph_, node);
    const std::string_view op = view.base();
    const TensorMeta* first = view.first_tensor();
    const TensorMeta* out = view.output();
    if (first == nullptr || out == nullptr) return std::nullopt;
    if (out->sizes.empty()) return out->sizes;  // a sum of all
    if (is_view(op) || (op == "squeeze" && view.integer("dim"))) {
      return after_view(view, first->sizes);
    }
    if (op == "linear") {
      Sizes sizes = first->sizes;
      const TensorMeta* weight = view.tensor("weight");
      if (weight == nullptr || weight->sizes.size() != 2 || sizes.empty()) return std::nullopt;
      sizes.back() = weight->sizes[0];
      return sizes;
    }
    if (op == "cat") {
      const auto at = wrapped(view.integer("dim").value_or(0), first->sizes.size());
      if (!at) return std::nullopt;
      Sizes sizes = first->sizes;
      sizes[*at] = 0;
      for (const TensorMeta* part : view.list("tensors")) {
        if (part->sizes.size() != sizes.size()) return std::nullopt;
        sizes[*at] += part->sizes[*at];
      }
      return sizes;
    }
    return element_by_element(node, out->sizes);
  }

  // What broadcasts as written also broadcasts as it is.
  std::optional<Sizes> element_by_element(const Node& node, const Sizes& out) const {
    std::vector<Sizes> as_written, real;
    for (ValueId id : inputs_of(node)) {
      const Sizes& sizes = graph_.value(id).meta.sizes;
      const auto written = written_.find(id);
      real.push_back(sizes);
      as_written.push_back(written == written_.end() ? sizes : written->second);
    }
    return broadcast(as_written) == out ? broadcast(real) : std::nullopt;
  }

  Graph& graph_;
  std::map<ValueId, Sizes> written_;  // of corrected values: what the export says
};

}  // namespace

Status correct_lstm_shapes(Graph& graph) {
  return Correction(graph).run();
}

}  // namespace weft::opdag
