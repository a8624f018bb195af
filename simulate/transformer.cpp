#include "simulate/transformer.h"

#include <fmt/format.h>

namespace weft::simulate {
namespace {

using opdag::ValueArg;
using opdag::ValueId;
using Sizes = std::vector<int64_t>;

class GraphBuilder {
 public:
  ValueId input(const std::string& name, const Sizes& sizes) {
    return leaf(opdag::LeafKind::kUserInput, name, sizes, DType::kInt64);
  }
  ValueId parameter(const std::string& name, const Sizes& sizes) {
    return leaf(opdag::LeafKind::kParameter, name, sizes, DType::kFloat32);
  }
  ValueId op(const std::string& name, const Sizes& sizes,
             std::vector<opdag::NamedArgument> arguments) {
    return op_of(DType::kFloat32, name, sizes, std::move(arguments));
  }
  ValueId op_of(DType dtype, const std::string& name, const Sizes& sizes,
                std::vector<opdag::NamedArgument> arguments) {
    opdag::Node node;
    node.id = static_cast<opdag::NodeId>(graph_.nodes.size());
    node.op = "aten::" + name;
    node.arguments = std::move(arguments);
    const ValueId out = value(fmt::format("v{}", graph_.values.size()), sizes, dtype);
    node.outputs = {out};
    graph_.values.back().producer = node.id;
    graph_.nodes.push_back(std::move(node));
    return out;
  }
  ValueId linear(ValueId x, const std::string& name, Sizes sizes, int64_t from, int64_t to) {
    sizes.back() = to;
    return op(
        "linear", sizes,
        {{"input", ValueArg{x}}, {"weight", ValueArg{parameter(name + ".weight", {to, from})}}});
  }
  ValueId norm(ValueId x, const std::string& name, const Sizes& sizes) {
    const int64_t width = sizes.back();
    return op("layer_norm", sizes,
              {{"input", ValueArg{x}},
               {"normalized_shape", opdag::IntListArg{{{width, opdag::kNone}}}},
               {"weight", ValueArg{parameter(name + ".weight", {width})}},
               {"bias", ValueArg{parameter(name + ".bias", {width})}}});
  }
  Result<opdag::Graph> finish(ValueId loss) {
    graph_.outputs = {{"loss", loss}};
    graph_.loss_output = 0;
    WEFT_TRY_STATUS(opdag::validate(graph_));
    return std::move(graph_);
  }

 private:
  ValueId value(const std::string& name, const Sizes& sizes, DType dtype) {
    opdag::Value v;
    v.id = static_cast<ValueId>(graph_.values.size());
    v.name = name;
    v.meta.dtype = dtype;
    v.meta.sizes = sizes;
    v.meta.strides = contiguous_strides(sizes);
    graph_.values.push_back(std::move(v));
    return graph_.values.back().id;
  }
  ValueId leaf(opdag::LeafKind kind, const std::string& target, const Sizes& sizes, DType dtype) {
    opdag::Leaf l;
    l.kind = kind;
    l.value = value(target, sizes, dtype);
    l.target = target;
    if (kind == opdag::LeafKind::kParameter) {
      l.trainable = true;
      l.tied_group = static_cast<int32_t>(graph_.leaves.size());
      l.weight.path = "data/weights/" + target;
      l.weight.sizes = sizes;
      l.weight.strides = contiguous_strides(sizes);
      l.weight.bytes = 4;
      for (const int64_t size : sizes) l.weight.bytes *= static_cast<uint64_t>(size);
    }
    graph_.leaves.push_back(std::move(l));
    return graph_.leaves.back().value;
  }

  opdag::Graph graph_;
};

opdag::IntListArg integers(const Sizes& sizes) {
  opdag::IntListArg list;
  for (const int64_t size : sizes) list.items.push_back({size, opdag::kNone});
  return list;
}

ValueId attention(GraphBuilder& g, ValueId x, const std::string& name,
                  const TransformerSpec& spec) {
  const int64_t b = spec.micro_batch, t = spec.tokens, w = spec.width, h = spec.heads;
  const Sizes flat{b, t, w}, apart{b, t, h, w / h}, turned{b, h, t, w / h};
  const auto heads = [&](const char* which) {
    const ValueId y = g.linear(x, name + "." + which, flat, w, w);
    const ValueId z = g.op("view", apart, {{"self", ValueArg{y}}, {"size", integers(apart)}});
    return g.op("transpose.int", turned,
                {{"self", ValueArg{z}}, {"dim0", int64_t{1}}, {"dim1", int64_t{2}}});
  };
  const ValueId q = heads("query"), k = heads("key"), v = heads("value");
  const ValueId mixed = g.op(
      "scaled_dot_product_attention", turned,
      {{"query", ValueArg{q}}, {"key", ValueArg{k}}, {"value", ValueArg{v}}, {"is_causal", true}});
  const ValueId back =
      g.op("transpose.int", apart,
           {{"self", ValueArg{mixed}}, {"dim0", int64_t{1}}, {"dim1", int64_t{2}}});
  const ValueId joined =
      g.op("reshape", flat, {{"self", ValueArg{back}}, {"shape", integers(flat)}});
  return g.linear(joined, name + ".out", flat, w, w);
}

}  // namespace

Result<opdag::Graph> transformer_graph(const TransformerSpec& spec) {
  const int64_t b = spec.micro_batch, t = spec.tokens, w = spec.width;
  const Sizes flat{b, t, w};
  GraphBuilder g;
  const ValueId tokens = g.input("tokens", {b, t}), targets = g.input("targets", {b, t});
  ValueId x = g.op("embedding", flat,
                   {{"weight", ValueArg{g.parameter("embedding.weight", {spec.vocabulary, w})}},
                    {"indices", ValueArg{tokens}}});
  const auto add = [&](ValueId a, ValueId other) {
    return g.op("add.Tensor", flat, {{"self", ValueArg{a}}, {"other", ValueArg{other}}});
  };
  x = add(x, g.parameter("positions", {t, w}));
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::string name = fmt::format("layers.{}", layer);
    x = add(x, attention(g, g.norm(x, name + ".norm1", flat), name + ".attention", spec));
    const ValueId wide = g.linear(g.norm(x, name + ".norm2", flat), name + ".up", flat, w, 4 * w);
    const ValueId bent = g.op("gelu", {b, t, 4 * w}, {{"self", ValueArg{wide}}});
    x = add(x, g.linear(bent, name + ".down", flat, 4 * w, w));
  }
  const ValueId logits = g.linear(g.norm(x, "norm", flat), "head", flat, w, spec.vocabulary);
  const Sizes rows{b * t, spec.vocabulary}, labels{b * t};
  const ValueId scores = g.op("view", rows, {{"self", ValueArg{logits}}, {"size", integers(rows)}});
  const ValueId wanted = g.op_of(DType::kInt64, "view", labels,
                                 {{"self", ValueArg{targets}}, {"size", integers(labels)}});
  return g.finish(
      g.op("cross_entropy_loss", {}, {{"self", ValueArg{scores}}, {"target", ValueArg{wanted}}}));
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
