// A small trainable graph for tests: a chain of linear layers and an mse loss.
#pragma once

#include <fmt/format.h>

#include <set>
#include <string>

#include "job/spec.h"
#include "opdag/cut.h"
#include "opdag/graph.h"

namespace weft::broker::testing {

inline opdag::Graph chain_graph(int layers, int64_t batch, int64_t width) {
  opdag::Graph graph;
  const auto value = [&](const std::string& name, std::vector<int64_t> sizes) {
    opdag::Value v;
    v.id = static_cast<opdag::ValueId>(graph.values.size());
    v.name = name;
    v.meta.sizes = sizes;
    v.meta.strides = contiguous_strides(sizes);
    graph.values.push_back(v);
    return v.id;
  };
  const auto leaf = [&](opdag::LeafKind kind, const std::string& target,
                        std::vector<int64_t> sizes) {
    opdag::Leaf l;
    l.kind = kind;
    l.value = value(target, sizes);
    l.target = target;
    if (kind == opdag::LeafKind::kParameter) {
      l.trainable = true;
      l.tied_group = static_cast<int32_t>(graph.leaves.size());
      l.weight.path = "data/weights/" + target;
      l.weight.sizes = sizes;
      l.weight.strides = contiguous_strides(sizes);
      l.weight.bytes = static_cast<uint64_t>(4 * *element_count(sizes));
    }
    graph.leaves.push_back(l);
    return l.value;
  };
  const auto node = [&](const std::string& op, std::vector<opdag::NamedArgument> arguments,
                        opdag::ValueId out) {
    opdag::Node n;
    n.id = static_cast<opdag::NodeId>(graph.nodes.size());
    n.op = op;
    n.arguments = std::move(arguments);
    n.outputs = {out};
    graph.values[static_cast<size_t>(out)].producer = n.id;
    graph.nodes.push_back(n);
  };
  std::vector<opdag::ValueId> weights;
  for (int i = 0; i < layers; ++i) {
    weights.push_back(
        leaf(opdag::LeafKind::kParameter, fmt::format("layer{}.weight", i), {width, width}));
  }
  opdag::ValueId x = leaf(opdag::LeafKind::kUserInput, "x", {batch, width});
  const opdag::ValueId y = leaf(opdag::LeafKind::kUserInput, "y", {batch, width});
  for (int i = 0; i < layers; ++i) {
    const auto out = value(fmt::format("linear_{}", i), {batch, width});
    node("aten::linear",
         {{"input", opdag::ValueArg{x}},
          {"weight", opdag::ValueArg{weights[static_cast<size_t>(i)]}}},
         out);
    x = out;
  }
  const auto loss = value("loss", {});
  node("aten::mse_loss", {{"self", opdag::ValueArg{x}}, {"target", opdag::ValueArg{y}}}, loss);
  graph.outputs = {{"loss", loss}};
  graph.loss_output = 0;
  const Status valid = opdag::validate(graph);
  if (!valid.ok()) fmt::print(stderr, "test graph: {}\n", valid.error().text());
  WEFT_CHECK(valid.ok());
  return graph;
}

inline job::JobSpec chain_spec(int64_t batch) {
  job::JobSpec spec;
  spec.name = "chain";
  spec.model = "chain.pt2";
  spec.data.arrays = {{"features", "x.npy", ""}, {"targets", "y.npy", ""}};
  spec.data.bindings = {{"x", "features", "", 1.0}, {"y", "targets", "", 1.0}};
  spec.train.steps = 20;
  spec.train.batch = batch;
  spec.train.lr = 1e-3;
  return spec;
}

}  // namespace weft::broker::testing
