#include "executor/measure_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "opdag/graph_builder.h"

namespace weft::executor {
namespace {

using job::OpClass;
using opdag::IntListArg;
using opdag::NamedArgument;
using opdag::Sizes;
using opdag::ValueArg;
using opdag::ValueId;

// A graph whose leaves need no names.
class Chain : public opdag::GraphBuilder {
 public:
  ValueId input(Sizes sizes, DType dtype = DType::kFloat32) {
    return GraphBuilder::input(next_name(), std::move(sizes), dtype);
  }
  ValueId weight(Sizes sizes) { return parameter(next_name(), std::move(sizes)); }
  const Sizes& sizes(ValueId id) const { return sizes_of(id); }
  ValueId unary(const char* name, ValueId x, std::vector<NamedArgument> more = {},
                const char* self = "self") {
    std::vector<NamedArgument> arguments{{self, ValueArg{x}}};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return op(name, std::move(arguments), sizes(x));
  }
  Result<opdag::Graph> done(ValueId out) {
    output("out", out);
    return build();
  }

 private:
  std::string next_name() const { return fmt::format("leaf{}", graph.leaves.size()); }
};

// Many operators where each takes microseconds, so that what a run costs beside them is shared.
int repeats(int level) {
  return level < 2 ? 16 : level < 4 ? 8 : 4;
}

IntListArg ints(std::initializer_list<int64_t> items) {
  IntListArg list;
  for (const int64_t item : items) list.items.push_back({item, opdag::kNone});
  return list;
}

ValueId linear(Chain& c, ValueId x, int64_t width) {
  const Sizes& in = c.sizes(x);
  const ValueId w = c.weight({width, in[1]}), bias = c.weight({width});
  return c.op("aten::linear",
              {{"input", ValueArg{x}}, {"weight", ValueArg{w}}, {"bias", ValueArg{bias}}},
              {c.sizes(x)[0], width});
}

// rows: of x, at the width of a level; products of a layer and back, as in a transformer's MLP.
CaseFamily linears(std::string name, int levels, int64_t (*rows)(int64_t width)) {
  return {std::move(name), OpClass::kMatrix, levels, [rows](int level) {
            const int64_t width = int64_t{32} << level;
            Chain c;
            ValueId x = c.input({rows(width), width});
            for (int i = 0; i < repeats(level) / 2; ++i)
              x = linear(c, linear(c, x, 2 * width), width);
            return c.done(x);
          }};
}

CaseFamily batched_products() {
  return {"bmm", OpClass::kMatrix, 6, [](int level) {
            const int64_t side = int64_t{16} << level, batch = 8;
            Chain c;
            ValueId x = c.input({batch, side, side});
            for (int i = 0; i < repeats(level); ++i) {
              const ValueId y = c.input({batch, side, side});
              x = c.op("aten::bmm", {{"self", ValueArg{x}}, {"mat2", ValueArg{y}}},
                       {batch, side, side});
            }
            return c.done(x);
          }};
}

// As in residual networks: the more channels, the smaller the picture; levels in groups of three
// shapes, then four times the batch.
CaseFamily convolutions(std::string name, int64_t kernel) {
  return {std::move(name), OpClass::kConvolution, 18, [kernel](int level) {
            const int64_t shape = level % 3, batch = int64_t{1} << (2 * (level / 3));
            const int64_t channels = int64_t{32} << shape, side = int64_t{32} >> shape;
            Chain c;
            ValueId x = c.input({batch, channels, side, side});
            for (int i = 0; i < 4; ++i) {
              const ValueId w = c.weight({channels, channels, kernel, kernel});
              x = c.op("aten::conv2d",
                       {{"input", ValueArg{x}},
                        {"weight", ValueArg{w}},
                        {"padding", ints({kernel / 2, kernel / 2})}},
                       c.sizes(x));
            }
            return c.done(x);
          }};
}

CaseFamily attention() {
  return {"attention", OpClass::kAttention, 7, [](int level) {
            // Sequences of 32, 128, 256 and 512, then four times the batch.
            const int64_t sequence = level == 0 ? 32 : int64_t{64} << std::min(level, 3);
            const Sizes shape{int64_t{2} << std::max(level - 3, 0) * 2, 4, sequence, 64};
            Chain c;
            ValueId x = c.input(shape);
            for (int i = 0; i < (level == 0 ? 4 : 2); ++i) {
              const ValueId k = c.input(shape), v = c.input(shape);
              x = c.op("aten::scaled_dot_product_attention",
                       {{"query", ValueArg{x}},
                        {"key", ValueArg{k}},
                        {"value", ValueArg{v}},
                        {"is_causal", true}},
                       shape);
            }
            return c.done(x);
          }};
}

// Elements of a level: 1024 and on.
Sizes plane(int level) {
  return {int64_t{8} << level, int64_t{128} << level};
}

CaseFamily each_element(std::string name, OpClass op_class,
                        std::function<ValueId(Chain&, ValueId)> next) {
  return {std::move(name), op_class, 8, [next = std::move(next)](int level) {
            Chain c;
            ValueId x = c.input(plane(level));
            for (int i = 0; i < repeats(level); ++i) x = next(c, x);
            return c.done(x);
          }};
}

CaseFamily batch_norms() {
  return {"batch_norm", OpClass::kNorm, 7, [](int level) {
            // Pictures of 16 x 16: batch and channels grow in turn.
            const int64_t batch = int64_t{2} << ((level + 1) / 2 + level / 3);
            const int64_t channels = int64_t{16} << (level / 2);
            Chain c;
            ValueId x = c.input({batch, channels, 16, 16});
            for (int i = 0; i < repeats(level) / 2; ++i) {
              const ValueId w = c.weight({channels}), bias = c.weight({channels});
              x = c.unary("aten::batch_norm", x,
                          {{"weight", ValueArg{w}},
                           {"bias", ValueArg{bias}},
                           {"running_mean", opdag::NoneArg{}},
                           {"running_var", opdag::NoneArg{}},
                           {"training", true},
                           {"momentum", 0.1},
                           {"eps", 1e-5},
                           {"cudnn_enabled", true}},
                          "input");
            }
            return c.done(x);
          }};
}

CaseFamily pooling() {
  return {
      "max_pool", OpClass::kReduce, 6, [](int level) {
        const int64_t batch = int64_t{1} << level, channels = int64_t{8} << level / 2;
        Chain c;
        ValueId x = c.input({batch, channels, 32, 32});
        for (int i = 0; i < 4; ++i) {
          x = c.unary(
              "aten::max_pool2d", x,
              {{"kernel_size", ints({3, 3})}, {"stride", ints({1, 1})}, {"padding", ints({1, 1})}});
        }
        return c.done(x);
      }};
}

CaseFamily losses() {
  return {"cross_entropy", OpClass::kReduce, 6, [](int level) {
            const int64_t rows = int64_t{32} << level, labels = int64_t{64} << level;
            Chain c;
            const ValueId x = c.input({rows, labels}), targets = c.input({rows}, DType::kInt64);
            return c.done(c.op("aten::cross_entropy_loss",
                               {{"self", ValueArg{x}}, {"target", ValueArg{targets}}}, {}));
          }};
}

CaseFamily embeddings() {
  return {
      "embedding", OpClass::kIndex, 7, [](int level) {
        // Rows and table grow in turn.
        const int64_t rows = int64_t{32} << level, width = 128;
        const int64_t table = int64_t{256} << (level % 2 == 0 ? level : level + 1);
        Chain c;
        const ValueId w = c.weight({table, width}), ids = c.input({rows}, DType::kInt64);
        return c.done(c.op("aten::embedding", {{"weight", ValueArg{w}}, {"indices", ValueArg{ids}}},
                           {rows, width}));
      }};
}

}  // namespace

std::vector<CaseFamily> measure_families() {
  std::vector<CaseFamily> families;
  families.push_back(linears("linear", 8, [](int64_t width) { return width; }));
  families.push_back(linears("thin linear", 7, [](int64_t) { return int64_t{16}; }));
  families.push_back(linears("tall linear", 6, [](int64_t width) { return 16 * width; }));
  families.push_back(batched_products());
  families.push_back(convolutions("convolution 3x3", 3));
  families.push_back(convolutions("convolution 1x1", 1));
  families.push_back(attention());
  // The gradient of a sum is free, but what it adds to has two readers, whose gradients are summed.
  families.push_back(each_element("residual", OpClass::kElementwise, [](Chain& c, ValueId x) {
    const ValueId y = c.unary("aten::relu", x);
    return c.unary("aten::add.Tensor", x, {{"other", ValueArg{y}}});
  }));
  families.push_back(each_element("scale", OpClass::kElementwise, [](Chain& c, ValueId x) {
    const ValueId y = c.input(c.sizes(x));
    return c.unary("aten::mul.Tensor", x, {{"other", ValueArg{y}}});
  }));
  families.push_back(each_element("gelu", OpClass::kFunction, [](Chain& c, ValueId x) {
    return c.unary("aten::gelu", x, {{"approximate", std::string("tanh")}});
  }));
  families.push_back(each_element("silu", OpClass::kFunction,
                                  [](Chain& c, ValueId x) { return c.unary("aten::silu", x); }));
  families.push_back(each_element("dropout", OpClass::kRandom, [](Chain& c, ValueId x) {
    return c.unary("aten::dropout", x, {{"p", 0.1}, {"train", true}}, "input");
  }));
  families.push_back(each_element("layer_norm", OpClass::kNorm, [](Chain& c, ValueId x) {
    const int64_t width = c.sizes(x)[1];
    const ValueId w = c.weight({width}), bias = c.weight({width});
    return c.unary(
        "aten::layer_norm", x,
        {{"normalized_shape", ints({width})}, {"weight", ValueArg{w}}, {"bias", ValueArg{bias}}},
        "input");
  }));
  families.push_back(batch_norms());
  families.push_back(each_element("softmax", OpClass::kReduce, [](Chain& c, ValueId x) {
    return c.unary("aten::softmax.int", x, {{"dim", int64_t{1}}});
  }));
  families.push_back(pooling());
  families.push_back(losses());
  families.push_back(embeddings());
  return families;
}

Result<opdag::Graph> empty_chain(int operators) {
  Chain c;
  ValueId x = c.input(plane(0));
  for (int i = 0; i < operators; ++i) x = c.unary("aten::relu", x);
  return c.done(x);
}

}  // namespace weft::executor
