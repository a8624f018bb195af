// NodeView: a node's arguments and the shapes around them, for cost formulas and limits. Never
// fails: what is absent or of another kind is a null pointer, an empty list or the given default.
// Private to opdag; lives no longer than the graph.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "opdag/graph.h"

namespace weft::opdag {

inline double elements(const TensorMeta* meta) {
  if (meta == nullptr) return 0;
  return static_cast<double>(element_count(meta->sizes).value_or(0));
}
inline double bytes(const TensorMeta* meta) {
  return meta == nullptr ? 0 : static_cast<double>(meta_bytes(*meta));
}

class NodeView {
 public:
  NodeView(const Graph& graph, const Node& node) : graph_(graph), node_(node) {}

  std::string_view base() const;      // "add" of "aten::add.Tensor"
  std::string_view overload() const;  // "Tensor"; empty for the default one

  const TensorMeta* tensor(std::string_view name) const;
  const TensorMeta* first_tensor() const;
  std::vector<const TensorMeta*> list(std::string_view name) const;
  // Every tensor it reads, parts of lists too, in order of appearance.
  std::vector<const TensorMeta*> tensors() const;

  // A literal integer, or the literals of a list; empty where any is a value of the graph.
  std::vector<int64_t> integers(std::string_view name) const;
  std::optional<int64_t> integer(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;  // integer or floating
  bool boolean(std::string_view name, bool otherwise) const;

  std::vector<const TensorMeta*> outputs() const;  // parts of lists too
  const TensorMeta* output() const;  // the first that exists; the first part of a list
  double output_elements() const;    // of all outputs together
  double output_bytes() const;

  // Points of an einsum's index space: the product of the sizes of all its labels. nullopt: the
  // equation does not fit the operands.
  std::optional<double> einsum_points() const;

  const Node& node() const { return node_; }

 private:
  const Graph& graph_;
  const Node& node_;
};

}  // namespace weft::opdag
