// The hand-made model of pt2_model.h with an open batch (torch.export.Dim), and what an export with
// a fixed one would have been. In expressions, $ stands for the batch's symbol.
#pragma once

#include "tests/support/pt2_model.h"

namespace weft::opdag::testing {

inline constexpr const char* kBatchSymbol = "Symbol('s77', positive=True, integer=True)";

inline std::string with_symbol(std::string_view expression) {
  std::string out;
  for (const char c : expression) {
    if (c == '$') {
      out += kBatchSymbol;
    } else {
      out += c;
    }
  }
  return out;
}

inline Json symbolic(std::string_view expression, const Json& hint = nullptr) {
  Json out = Json::object();
  out["as_expr"] = {{"expr_str", with_symbol(expression)}, {"hint", hint}};
  return out;
}

inline Json of_name(const char* kind, const std::string& name) {
  Json out = Json::object();
  out[kind] = {{"as_name", name}};
  return out;
}

inline Json literal(const char* kind, const Json& value) {
  Json out = Json::object();
  out[kind] = value;
  return out;
}

// For batches of that many samples, with operators that know the batch behind its last linear:
// x.view(2 b / 2, -1) * (b / 8).
inline Pt2Model fixed_model(int64_t batch) {
  Pt2Model model;
  Json& graph = model.program["graph_module"]["graph"];
  for (auto& [name, meta] : graph["tensor_values"].items()) {
    if (meta["sizes"].size() == 2 && meta["sizes"][0]["as_int"] == 2) {
      meta["sizes"][0]["as_int"] = batch;
    }
  }
  graph["tensor_values"]["view"] = graph["tensor_values"]["mul_1"] =
      graph["tensor_values"]["linear_1"];
  Json& mean = model.nodes()[6];
  mean["inputs"][0] = argument("self", tensor("mul_1"));
  Json size = Json::object();
  size["as_sym_ints"] = {literal("as_int", batch), literal("as_int", -1)};
  const Json factor = literal("as_float", static_cast<double>(batch) / 8);
  Json nodes = model.nodes();
  nodes.insert(nodes.begin() + 6,
               {node("torch.ops.aten.view.default",
                     Json::array({argument("self", tensor("linear_1")), argument("size", size)}),
                     Json::array({tensor("view")})),
                node("torch.ops.aten.mul.Tensor",
                     Json::array({argument("self", tensor("view")), argument("other", factor)}),
                     Json::array({tensor("mul_1")}))});
  model.nodes() = nodes;
  return model;
}

// The same with the batch open: numbers sym_size_int, mul, floordiv, truediv and le.
inline Pt2Model open_model(int64_t sample = 4) {
  Pt2Model model = fixed_model(sample);
  Json& graph = model.program["graph_module"]["graph"];
  for (auto& [name, meta] : graph["tensor_values"].items()) {
    if (meta["sizes"].size() == 2 && meta["sizes"][0]["as_int"] == sample) {
      meta["sizes"][0] = symbolic("$", literal("as_int", sample));
    }
  }
  graph["sym_int_values"] = Json::object();
  graph["sym_int_values"]["sym_size_int"] = symbolic("$");
  graph["sym_int_values"]["mul"] = symbolic("Mul(Integer(2), $)");
  graph["sym_int_values"]["floordiv"] = symbolic("Mul(Rational(1, 2), Mul(Integer(2), $))");
  graph["sym_float_values"] = Json::object();
  graph["sym_float_values"]["truediv"] = symbolic("IntTrueDiv($, Integer(8))");
  graph["sym_bool_values"] = Json::object();
  graph["sym_bool_values"]["le"] = symbolic("LessThan($, Integer(50))");
  Json nodes = model.nodes();
  const Json two = literal("as_int", 2), eight = literal("as_int", 8), axis = literal("as_int", 0);
  nodes[6]["inputs"][1]["arg"]["as_sym_ints"][0] = literal("as_name", "floordiv");
  nodes[7]["inputs"][1]["arg"] = of_name("as_sym_float", "truediv");
  const auto number = [](const char* target, const Json& a, const Json& b, const Json& made) {
    return node(target, Json::array({argument("a", a), argument("b", b)}), Json::array({made}));
  };
  const Json size = of_name("as_sym_int", "sym_size_int");
  nodes.insert(nodes.begin(),
               {number("torch.ops.aten.sym_size.int", tensor("x"), axis, size),
                number("_operator.mul", size, two, of_name("as_sym_int", "mul")),
                number("_operator.floordiv", of_name("as_sym_int", "mul"), two,
                       of_name("as_sym_int", "floordiv")),
                number("_operator.truediv", size, eight, of_name("as_sym_float", "truediv"))});
  model.nodes() = nodes;
  model.program["range_constraints"] = {{"s77", {{"min_val", 2}, {"max_val", 64}}}};
  return model;
}

// The model asserts the number "le".
inline void add_assertion(Pt2Model& open) {
  Json nodes = open.nodes();
  nodes.push_back(node("torch.ops.aten._assert_scalar.default",
                       Json::array({argument("self", of_name("as_sym_bool", "le")),
                                    argument("assert_msg", literal("as_string", "at most 50"))}),
                       Json::array()));
  open.nodes() = nodes;
}

// A graph within a node before the view, of `rows` rows; `number`: it takes one of the model's
// numbers, too, which only an open model has.
inline void add_region(Pt2Model& to, const Json& rows, bool number) {
  Json inner = to.value("linear_1");
  inner["sizes"][0] = rows;
  const Json body = {{"inputs", Json::array({tensor("inner")})},
                     {"outputs", Json::array({tensor("inner_1")})},
                     {"nodes", Json::array({node("torch.ops.aten.sin.default",
                                                 Json::array({argument("self", tensor("inner"))}),
                                                 Json::array({tensor("inner_1")}))})},
                     {"tensor_values", {{"inner", inner}, {"inner_1", inner}}}};
  const Json graph = literal("as_graph", {{"name", "submod_1"}, {"graph", body}});
  Json inputs = Json::array({argument("", literal("as_bool", true)), argument("", graph)});
  if (number) {
    inputs.push_back(argument("", of_name("as_sym_int", "mul")));
    Json& taken = inputs[1]["arg"]["as_graph"]["graph"]["inputs"];
    taken.insert(taken.begin(), of_name("as_sym_int", "taken"));
  }
  inputs.push_back(argument("", tensor("linear_1")));
  Json nodes = to.nodes();
  const auto at = nodes.begin() + (number ? 10 : 6);
  nodes.insert(at, node("torch.ops.higher_order.wrap_with_set_grad_enabled", inputs,
                        Json::array({tensor("region")})));
  to.nodes() = nodes;
  to.value("region") = inner;
}

}  // namespace weft::opdag::testing
