// GraphBuilder: graphs by hand, node by node: what is measured, simulated and tested without an
// export. Values are float32 and contiguous unless said otherwise.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "opdag/graph.h"

namespace weft::opdag {

using Sizes = std::vector<int64_t>;

class GraphBuilder {
 public:
  ValueId input(const std::string& name, Sizes sizes, DType dtype = DType::kFloat32) {
    return leaf(LeafKind::kUserInput, name, std::move(sizes), dtype);
  }
  ValueId parameter(const std::string& name, Sizes sizes, bool trainable = true) {
    const ValueId id = leaf(LeafKind::kParameter, name, std::move(sizes), DType::kFloat32);
    graph.leaves.back().trainable = trainable;
    return id;
  }
  ValueId buffer(const std::string& name, Sizes sizes, DType dtype = DType::kFloat32) {
    return leaf(LeafKind::kBuffer, name, std::move(sizes), dtype);
  }
  ValueId constant(const std::string& name, Sizes sizes, DType dtype = DType::kFloat32) {
    return leaf(LeafKind::kConstant, name, std::move(sizes), dtype);
  }
  // A second parameter with the same bytes as the leaf `of`; both join one tied group.
  ValueId tied_parameter(const std::string& name, ValueId of) {
    const ValueId id = parameter(name, graph.value(of).meta.sizes);
    for (Leaf& first : graph.leaves) {
      if (first.value != of) continue;
      if (first.tied_group == kNone) first.tied_group = next_group_++;
      graph.leaves.back().weight = first.weight;
      graph.leaves.back().tied_group = first.tied_group;
    }
    return id;
  }

  // A node with one tensor output.
  ValueId op(const std::string& name, std::vector<NamedArgument> arguments, Sizes sizes,
             DType dtype = DType::kFloat32) {
    const ValueId id = value(std::move(sizes), dtype);
    node(name, std::move(arguments), {id});
    return id;
  }
  // A node whose output is a list of tensors, one of each shape; returns the parts.
  std::vector<ValueId> list_op(const std::string& name, std::vector<NamedArgument> arguments,
                               const std::vector<Sizes>& parts) {
    std::vector<ValueId> elements;
    for (const Sizes& sizes : parts) elements.push_back(value(sizes, DType::kFloat32));
    const ValueId list = value({}, DType::kFloat32);
    graph.values.back().kind = ValueKind::kTensorList;
    graph.values.back().elements = elements;
    node(name, std::move(arguments), {list});
    return elements;
  }
  Node& node(const std::string& name, std::vector<NamedArgument> arguments,
             std::vector<ValueId> outputs) {
    Node made;
    made.id = static_cast<NodeId>(graph.nodes.size());
    made.op = name;
    made.arguments = std::move(arguments);
    made.outputs = std::move(outputs);
    graph.nodes.push_back(std::move(made));
    return graph.nodes.back();
  }
  ValueId value(Sizes sizes, DType dtype) {
    Value made;
    made.id = static_cast<ValueId>(graph.values.size());
    made.name = "v" + std::to_string(made.id);
    made.meta.dtype = dtype;
    made.meta.strides = contiguous_strides(sizes);
    made.meta.sizes = std::move(sizes);
    graph.values.push_back(std::move(made));
    return graph.values.back().id;
  }

  const Sizes& sizes_of(ValueId id) const { return graph.value(id).meta.sizes; }
  ValueId unary(const std::string& name, ValueId x) {
    return op(name, {{"self", ValueArg{x}}}, sizes_of(x));
  }
  ValueId relu(ValueId x) { return unary("aten::relu", x); }
  ValueId tanh(ValueId x) { return unary("aten::tanh", x); }
  ValueId add(ValueId a, ValueId b) {
    return op("aten::add.Tensor", {{"self", ValueArg{a}}, {"other", ValueArg{b}}}, sizes_of(a));
  }
  ValueId mul(ValueId a, ValueId b) {
    return op("aten::mul.Tensor", {{"self", ValueArg{a}}, {"other", ValueArg{b}}}, sizes_of(a));
  }
  ValueId dropout(ValueId x, double p = 0.1) {
    return op("aten::dropout", {{"input", ValueArg{x}}, {"p", p}, {"train", true}}, sizes_of(x));
  }
  // x [N, in], weight [out, in] -> [N, out]
  ValueId linear(ValueId x, ValueId weight) {
    return op("aten::linear", {{"input", ValueArg{x}}, {"weight", ValueArg{weight}}},
              {sizes_of(x)[0], sizes_of(weight)[0]});
  }
  ValueId linear(ValueId x, const std::string& weight_name, int64_t width) {
    return linear(x, parameter(weight_name, {width, sizes_of(x)[1]}));
  }
  std::vector<ValueId> split2(ValueId x) {  // halves of the last dimension of [N, even]
    const Sizes half{sizes_of(x)[0], sizes_of(x)[1] / 2};
    return list_op("aten::split.Tensor",
                   {{"self", ValueArg{x}}, {"split_size", half[1]}, {"dim", int64_t{1}}},
                   {half, half});
  }
  ValueId cat(const std::vector<ValueId>& parts) {  // along dimension 1
    Sizes sizes = sizes_of(parts.at(0));
    sizes[1] = 0;
    for (ValueId id : parts) sizes[1] += sizes_of(id)[1];
    return op("aten::cat", {{"tensors", ValueListArg{parts}}, {"dim", int64_t{1}}}, sizes);
  }
  ValueId full(const Sizes& sizes, double number) {
    IntListArg size;
    for (const int64_t length : sizes) size.items.push_back({length, kNone});
    return op("aten::full", {{"size", size}, {"fill_value", number}}, sizes);
  }
  ValueId mean(ValueId x) { return op("aten::mean", {{"self", ValueArg{x}}}, {}); }

  void output(const std::string& name, ValueId id) { graph.outputs.push_back({name, id}); }
  void loss(ValueId id) {
    graph.loss_output = static_cast<int32_t>(graph.outputs.size());
    output("loss", id);
  }

  // The graph, validated against the operator table.
  Result<Graph> build() {
    Graph made = graph;
    WEFT_TRY_STATUS(validate(made));
    return made;
  }

  Graph graph;

 private:
  ValueId leaf(LeafKind kind, const std::string& name, Sizes sizes, DType dtype) {
    const ValueId id = value(std::move(sizes), dtype);
    graph.values.back().name = name;
    Leaf made;
    made.kind = kind;
    made.value = id;
    made.target = name;
    if (kind != LeafKind::kUserInput) {
      const TensorMeta& meta = graph.values.back().meta;
      made.weight.path = "data/weights/weight_" + std::to_string(graph.leaves.size());
      made.weight.stored_dtype = dtype;
      made.weight.sizes = meta.sizes;
      made.weight.strides = meta.strides;
      made.weight.bytes = static_cast<uint64_t>(meta_bytes(meta));
    }
    graph.leaves.push_back(std::move(made));
    return id;
  }

  int32_t next_group_ = 0;
};

}  // namespace weft::opdag
