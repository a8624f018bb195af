// A small trainable graph for tests: a chain of linear layers and an mse loss.
#pragma once

#include <fmt/format.h>

#include <set>
#include <string>

#include "job/spec.h"
#include "opdag/cut.h"
#include "opdag/graph_builder.h"

namespace weft::broker::testing {

inline opdag::Graph chain_graph(int layers, int64_t batch, int64_t width) {
  opdag::GraphBuilder g;
  std::vector<opdag::ValueId> weights;
  for (int i = 0; i < layers; ++i) {
    weights.push_back(g.parameter(fmt::format("layer{}.weight", i), {width, width}));
  }
  opdag::ValueId x = g.input("x", {batch, width});
  const opdag::ValueId y = g.input("y", {batch, width});
  for (const opdag::ValueId weight : weights) x = g.linear(x, weight);
  g.loss(
      g.op("aten::mse_loss", {{"self", opdag::ValueArg{x}}, {"target", opdag::ValueArg{y}}}, {}));
  auto graph = g.build();
  if (!graph.ok()) fmt::print(stderr, "test graph: {}\n", graph.error().text());
  WEFT_CHECK(graph.ok());
  return std::move(graph).value();
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
