#include "simulate/transformer.h"

#include <fmt/format.h>

#include <utility>

#include "opdag/graph_builder.h"

namespace weft::simulate {
namespace {

using opdag::ValueArg;
using opdag::ValueId;

using opdag::GraphBuilder;
using opdag::Sizes;

// x [.., from] to [.., to].
ValueId linear(GraphBuilder& g, ValueId x, const std::string& name, int64_t to) {
  Sizes sizes = g.sizes_of(x);
  const ValueId weight = g.parameter(name + ".weight", {to, sizes.back()});
  sizes.back() = to;
  return g.op("aten::linear", {{"input", ValueArg{x}}, {"weight", ValueArg{weight}}}, sizes);
}

ValueId norm(GraphBuilder& g, ValueId x, const std::string& name) {
  const int64_t width = g.sizes_of(x).back();
  const ValueId weight = g.parameter(name + ".weight", {width});
  const ValueId bias = g.parameter(name + ".bias", {width});
  return g.op("aten::layer_norm",
              {{"input", ValueArg{x}},
               {"normalized_shape", opdag::IntListArg{{{width, opdag::kNone}}}},
               {"weight", ValueArg{weight}},
               {"bias", ValueArg{bias}}},
              g.sizes_of(x));
}

opdag::IntListArg integers(const Sizes& sizes) {
  opdag::IntListArg list;
  for (const int64_t size : sizes) list.items.push_back({size, opdag::kNone});
  return list;
}

ValueId view(GraphBuilder& g, ValueId x, const Sizes& sizes, DType dtype = DType::kFloat32) {
  return g.op("aten::view", {{"self", ValueArg{x}}, {"size", integers(sizes)}}, sizes, dtype);
}

// Heads and positions change places.
ValueId turn(GraphBuilder& g, ValueId x) {
  Sizes sizes = g.sizes_of(x);
  std::swap(sizes[1], sizes[2]);
  return g.op("aten::transpose.int",
              {{"self", ValueArg{x}}, {"dim0", int64_t{1}}, {"dim1", int64_t{2}}}, sizes);
}

ValueId attention(GraphBuilder& g, ValueId x, const std::string& name,
                  const TransformerSpec& spec) {
  const int64_t b = spec.micro_batch, t = spec.tokens, w = spec.width, h = spec.heads;
  const auto heads = [&](const char* which) {
    return turn(g, view(g, linear(g, x, name + "." + which, w), {b, t, h, w / h}));
  };
  const ValueId q = heads("query"), k = heads("key"), v = heads("value");
  const ValueId mixed = g.op(
      "aten::scaled_dot_product_attention",
      {{"query", ValueArg{q}}, {"key", ValueArg{k}}, {"value", ValueArg{v}}, {"is_causal", true}},
      g.sizes_of(q));
  const Sizes flat{b, t, w};
  const ValueId joined =
      g.op("aten::reshape", {{"self", ValueArg{turn(g, mixed)}}, {"shape", integers(flat)}}, flat);
  return linear(g, joined, name + ".out", w);
}

}  // namespace

Result<opdag::Graph> transformer_graph(const TransformerSpec& spec) {
  const int64_t b = spec.micro_batch, t = spec.tokens, w = spec.width;
  GraphBuilder g;
  const ValueId tokens = g.input("tokens", {b, t}, DType::kInt64);
  const ValueId targets = g.input("targets", {b, t}, DType::kInt64);
  const ValueId table = g.parameter("embedding.weight", {spec.vocabulary, w});
  ValueId x = g.op("aten::embedding", {{"weight", ValueArg{table}}, {"indices", ValueArg{tokens}}},
                   {b, t, w});
  x = g.add(x, g.parameter("positions", {t, w}));
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::string name = fmt::format("layers.{}", layer);
    x = g.add(x, attention(g, norm(g, x, name + ".norm1"), name + ".attention", spec));
    const ValueId wide = linear(g, norm(g, x, name + ".norm2"), name + ".up", 4 * w);
    x = g.add(x, linear(g, g.unary("aten::gelu", wide), name + ".down", w));
  }
  const ValueId logits = linear(g, norm(g, x, "norm"), "head", spec.vocabulary);
  const ValueId scores = view(g, logits, {b * t, spec.vocabulary});
  const ValueId wanted = view(g, targets, {b * t}, DType::kInt64);
  g.loss(g.op("aten::cross_entropy_loss",
              {{"self", ValueArg{scores}}, {"target", ValueArg{wanted}}}, {}));
  return g.build();
}

job::JobSpec transformer_job() {
  job::JobSpec spec;
  spec.name = "transformer";
  spec.data.train = "tokens";
  spec.data.bindings = {{"tokens", "tokens", "", 1.0}, {"targets", "next_tokens", "", 1.0}};
  spec.train.optimizer = job::Optimizer::kAdamW;
  spec.train.lr = 1e-4;
  return spec;
}

}  // namespace weft::simulate
