#include "opdag/open_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "opdag/sympy.h"

namespace weft::opdag {
namespace {

constexpr int kMaxGraphDepth = 16;
constexpr const char* kOther =
    "set train.micro_batch to one that the export allows, or export with a wider torch.export.Dim";

using Numbers = std::unordered_map<std::string, SymbolicNumber>;

// The symbol that an expression is, and nothing beside it.
std::string sole_symbol(const std::string& expression) {
  const std::string name = symbol_name(expression);
  return !name.empty() && evaluate(expression, name, 7) == SymbolicNumber(int64_t{7}) ? name : "";
}

class Closer {
 public:
  Closer(std::string symbol, int64_t batch) : symbol_(std::move(symbol)), batch_(batch) {}

  Status close(Json& graph, int depth = 0) {
    if (depth > kMaxGraphDepth) throw std::runtime_error("graphs nested too deep");
    for (auto& [name, meta] : graph.at("tensor_values").items()) close_meta(meta);
    const Numbers numbers = numbers_of(graph);
    Json& nodes = graph.at("nodes");
    Json kept = Json::array();
    for (Json& node : nodes) {
      WEFT_TRY_STATUS(close_node(node, numbers, depth));
      if (!only_numbers(node, numbers)) kept.push_back(std::move(node));
    }
    nodes = std::move(kept);
    return {};
  }

 private:
  std::optional<SymbolicNumber> number_of(const Json& symbolic, bool whole) const {
    const auto [kind, body] = union_member(symbolic);
    if (kind != "as_expr") return {};
    const std::string& expression = body->at("expr_str").get_ref<const std::string&>();
    if (whole) return evaluate_integer(expression, symbol_, batch_);
    return evaluate(expression, symbol_, batch_);
  }

  void close_size(Json& size) const {
    if (const auto number = number_of(size, true)) size = literal(*number);
  }

  void close_meta(Json& meta) const {
    for (const char* list : {"sizes", "strides"}) {
      for (Json& size : meta.at(list)) close_size(size);
    }
    close_size(meta.at("storage_offset"));
  }

  Numbers numbers_of(const Json& graph) const {
    Numbers numbers;
    for (const char* table : {"sym_int_values", "sym_float_values", "sym_bool_values"}) {
      const auto found = graph.find(table);
      if (found == graph.end() || !found->is_object()) continue;
      const bool whole = std::string_view(table) == "sym_int_values";
      for (const auto& [name, value] : found->items()) {
        if (const auto number = number_of(value, whole)) numbers.emplace(name, *number);
      }
    }
    return numbers;
  }

  static const SymbolicNumber* named(const Json& symbolic, const Numbers& numbers) {
    const auto [kind, name] = union_member(symbolic);
    if (kind != "as_name") return nullptr;
    const auto found = numbers.find(name->get_ref<const std::string&>());
    return found == numbers.end() ? nullptr : &found->second;
  }

  static Json literal(const SymbolicNumber& number) {
    Json json = Json::object();
    if (const auto* integer = std::get_if<int64_t>(&number)) json["as_int"] = *integer;
    if (const auto* real = std::get_if<double>(&number)) json["as_float"] = *real;
    if (const auto* boolean = std::get_if<bool>(&number)) json["as_bool"] = *boolean;
    return json;
  }

  Status close_argument(Json& argument, const Numbers& numbers, int depth) {
    const auto [kind, body] = union_member(argument);
    if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
      if (const SymbolicNumber* number = named(*body, numbers)) argument = literal(*number);
    } else if (kind == "as_sym_ints") {
      for (Json& item : argument.at(kind)) {
        if (const SymbolicNumber* number = named(item, numbers)) item = literal(*number);
      }
    } else if (kind == "as_graph") {
      WEFT_TRY_STATUS(close(argument.at(kind).at("graph"), depth + 1));
    }
    return {};
  }

  // Numbers that a graph within a node takes from outside are known inside it, too.
  static void drop_numbers_of_region(Json& inputs) {
    const auto symbolic = [](const Json& item) {
      return union_member(item).first.starts_with("as_sym_");
    };
    for (size_t graph = 0; graph < inputs.size(); ++graph) {
      Json& argument = inputs[graph].at("arg");
      if (union_member(argument).first != "as_graph") continue;
      Json& taken = argument.at("as_graph").at("graph").at("inputs");
      Json tensors = Json::array(), given = Json::array();
      for (size_t i = graph + 1; i < inputs.size(); ++i) {
        const size_t place = i - graph - 1;
        const bool number = place < taken.size() && symbolic(taken[place]) &&
                            !symbolic(inputs[i].at("arg"));  // known by now
        if (place < taken.size() && !number) tensors.push_back(std::move(taken[place]));
        if (!number) given.push_back(std::move(inputs[i]));
      }
      for (size_t place = inputs.size() - graph - 1; place < taken.size(); ++place) {
        tensors.push_back(std::move(taken[place]));  // of which nothing is given: refused later
      }
      taken = std::move(tensors);
      while (inputs.size() > graph + 1) inputs.erase(inputs.size() - 1);
      for (Json& input : given) inputs.push_back(std::move(input));
      return;
    }
  }

  Status close_node(Json& node, const Numbers& numbers, int depth) {
    Json& inputs = node.at("inputs");
    for (Json& input : inputs) {
      WEFT_TRY_STATUS(close_argument(input.at("arg"), numbers, depth));
    }
    if (node.at("target").get_ref<const std::string&>().find("_assert_scalar") !=
        std::string::npos) {
      for (const Json& input : inputs) {
        const auto [kind, holds] = union_member(input.at("arg"));
        if (kind != "as_bool" || holds->get<bool>()) continue;
        return make_error(
            Code::kInvalid,
            fmt::format("the model asserts what does not hold for micro-batches of {}", batch_),
            kOther);
      }
    }
    drop_numbers_of_region(inputs);
    return {};
  }

  static bool only_numbers(const Json& node, const Numbers& numbers) {
    const auto outputs = node.find("outputs");
    if (outputs == node.end() || outputs->empty()) return false;
    for (const Json& output : *outputs) {
      const auto [kind, body] = union_member(output);
      if (!kind.starts_with("as_sym_") || !body->is_object() || named(*body, numbers) == nullptr) {
        return false;
      }
    }
    return true;
  }

  std::string symbol_;
  int64_t batch_;
};

}  // namespace

std::optional<OpenBatch> open_batch_of(const Json& program) {
  const Json& module = program.at("graph_module");
  const Json& metas = module.at("graph").at("tensor_values");
  std::optional<OpenBatch> open;
  for (const Json& spec : module.at("signature").at("input_specs")) {
    const auto [kind, body] = union_member(spec);
    if (kind != "user_input") continue;
    const auto [arg_kind, arg] = union_member(body->at("arg"));
    if (arg_kind != "as_tensor") continue;
    const auto meta = metas.find(arg->at("name").get_ref<const std::string&>());
    if (meta == metas.end()) return {};
    const Json& sizes = meta->at("sizes");
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto [size_kind, size] = union_member(sizes[i]);
      if ((size_kind == "as_expr") != (i == 0)) return {};
      if (i > 0) continue;
      OpenBatch found{sole_symbol(size->at("expr_str").get_ref<const std::string&>()), {}};
      const auto hint = size->find("hint");
      if (hint != size->end() && hint->is_object() && union_member(*hint).first == "as_int") {
        found.sample = read_integer(*union_member(*hint).second);
      }
      if (found.symbol.empty() || (open && open->symbol != found.symbol)) return {};
      open = found;
    }
  }
  return open;
}

Status close_batch(Json& program, const OpenBatch& open, int64_t batch) {
  int64_t least = 1, most = INT64_MAX;
  const auto ranges = program.find("range_constraints");
  if (ranges != program.end() && ranges->is_object() && ranges->contains(open.symbol)) {
    const Json& range = ranges->at(open.symbol);
    const auto bound = [&range](const char* name, int64_t otherwise) {
      const auto found = range.find(name);
      return found == range.end() || found->is_null() ? otherwise : read_integer(*found);
    };
    least = std::max(least, bound("min_val", least));
    most = bound("max_val", most);
  }
  if (batch < least || batch > most) {
    return make_error(
        Code::kInvalid,
        fmt::format("a micro-batch of {} is not among those the export allows, {} to {}", batch,
                    least, most),
        kOther);
  }
  return Closer(open.symbol, batch).close(program.at("graph_module").at("graph"));
}

}  // namespace weft::opdag
