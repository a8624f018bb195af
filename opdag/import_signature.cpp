// The graph's signature: leaves with their weights, outputs, the loss, tied weights.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "opdag/import_reader.h"

namespace weft::opdag {
namespace {

// Behind the last element a weight touches in its file; validate looks at the numbers later.
int64_t end_of(const WeightRef& weight) {
  int64_t sum = 0;
  const int64_t extent = strided_extent(weight.sizes, weight.strides).value_or(0);
  return __builtin_add_overflow(weight.storage_offset, extent, &sum) ? INT64_MAX : sum;
}

}  // namespace

// All symbolic dimensions of the inputs at once, with the lines of the export call that made them.
Status Importer::refuse_dynamic_inputs(const Json& module) const {
  std::string what, entries, name_of_first;
  for (const Json& spec : module.at("signature").at("input_specs")) {
    const auto [kind, body] = union_member(spec);
    if (kind != "user_input") continue;
    const auto [arg_kind, arg] = union_member(body->at("arg"));
    if (arg_kind != "as_tensor") continue;
    const auto name = arg->at("name").get<std::string>();
    const auto meta = metas_->find(name);
    if (meta == metas_->end()) continue;
    std::string dimensions;
    const Json& sizes = meta->at("sizes");
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto [size_kind, size] = union_member(sizes[i]);
      if (size_kind != "as_expr") continue;
      const std::string symbol = symbol_name(size->at("expr_str").get<std::string>());
      what += fmt::format("{}dimension {} of input '{}' ({})", what.empty() ? "" : ", ", i, name,
                          symbol);
      dimensions += fmt::format("{}{}: ...", dimensions.empty() ? "" : ", ", i);
    }
    if (dimensions.empty()) continue;
    entries += fmt::format("{}\"{}\": {{{}}}", entries.empty() ? "" : ", ", name, dimensions);
  }
  if (what.empty()) return {};
  return make_error(
      Code::kRefused,
      fmt::format("dynamic shapes: {}; only the batch may be open, one torch.export.Dim for "
                  "dimension 0 of every input",
                  what),
      fmt::format("drop dynamic_shapes={{{}}} (the torch.export.Dim of these dimensions) from the "
                  "torch.export.export call and give it example inputs of one micro-batch's shape",
                  entries));
}

Status Importer::read_inputs(const Json& module) {
  for (const Json& spec : module.at("signature").at("input_specs")) {
    const auto [kind, body] = union_member(spec);
    if (kind == "constant_input") continue;  // baked into the graph
    if (kind == "custom_obj" || kind == "token") {
      return make_error(Code::kRefused, fmt::format("the model takes a {} input", kind),
                        "use tensors only");
    }
    const Json* arg = &body->at("arg");
    if (kind == "user_input") {
      const auto [arg_kind, arg_body] = union_member(*arg);
      if (arg_kind.starts_with("as_sym")) {
        return dynamic_shape(fmt::format("input {}", arg_body->dump()), "a symbolic number");
      }
      if (arg_kind != "as_tensor") continue;
      arg = arg_body;
    }
    WEFT_TRY_STATUS(read_leaf(kind, *body, arg->at("name").get<std::string>()));
  }
  return {};
}

Status Importer::read_leaf(const std::string& kind, const Json& body, const std::string& name) {
  Leaf leaf;
  leaf.target = name;
  bool in_constants = false;
  if (kind == "user_input") {
    leaf.kind = LeafKind::kUserInput;
  } else if (kind == "parameter") {
    leaf.kind = LeafKind::kParameter;
    leaf.target = body.at("parameter_name").get<std::string>();
  } else if (kind == "buffer") {
    leaf.kind = LeafKind::kBuffer;
    leaf.target = body.at("buffer_name").get<std::string>();
    leaf.persistent = body.at("persistent").get<bool>();
    in_constants = !leaf.persistent;
  } else if (kind == "tensor_constant") {
    leaf.kind = LeafKind::kConstant;
    leaf.target = body.at("tensor_constant_name").get<std::string>();
    leaf.persistent = false;
    in_constants = true;
  } else {
    return make_error(Code::kRefused, fmt::format("input kind '{}' is unknown", kind),
                      kExportAgain);
  }
  WEFT_TRY(leaf.value, define(name, fmt::format("input '{}'", leaf.target)));
  if (leaf.kind == LeafKind::kParameter) {
    leaf.trainable = metas_->at(name).at("requires_grad").get<bool>() &&
                     dtype_can_have_gradient(graph_.value(leaf.value).meta.dtype);
  }
  if (leaf.kind != LeafKind::kUserInput) {
    WEFT_TRY(leaf.weight, weight(leaf.target, in_constants));
  }
  graph_.leaves.push_back(std::move(leaf));
  return {};
}

std::vector<std::string> Importer::names_of_outputs(const Json& module) {
  for (const Json& entry : module.at("module_call_graph")) {
    if (entry.at("fqn").get<std::string>().empty() && entry.contains("signature") &&
        entry.at("signature").is_object()) {
      return output_names(entry.at("signature").at("out_spec").get<std::string>());
    }
  }
  return {};
}

Status Importer::read_outputs(const Json& module) {
  const Json& specs = module.at("signature").at("output_specs");
  std::vector<std::string> names = names_of_outputs(module);
  const auto users =
      static_cast<size_t>(std::count_if(specs.begin(), specs.end(), [](const Json& spec) {
        const std::string kind = union_member(spec).first;
        return kind == "user_output" || kind == "loss_output";
      }));
  if (names.size() != users) {
    names.clear();
    for (size_t i = 0; i < users; ++i) names.push_back(fmt::format("out.{}", i));
  }
  size_t position = 0;
  for (const Json& spec : specs) {
    const auto [kind, body] = union_member(spec);
    if (kind == "user_output") {
      const auto [arg_kind, arg] = union_member(body->at("arg"));
      const std::string& name = names[position++];
      if (arg_kind != "as_tensor") continue;
      WEFT_TRY(const ValueId id, lookup(*arg));
      graph_.outputs.push_back({name, id});
    } else if (kind == "loss_output") {
      WEFT_TRY(const ValueId id, lookup(body->at("arg")));
      graph_.loss_output = static_cast<int32_t>(graph_.outputs.size());
      graph_.outputs.push_back({names[position++], id});
    } else if (kind == "buffer_mutation") {
      WEFT_TRY(const ValueId id, lookup(body->at("arg")));
      graph_.buffer_updates.push_back({body->at("buffer_name").get<std::string>(), id});
    } else if (kind != "user_input_mutation") {
      return make_error(Code::kRefused, fmt::format("the model has an output of kind '{}'", kind),
                        "export the model's plain forward, before any joint or lowered form");
    }
  }
  return {};
}

bool Importer::scalar_loss(const Output& output) const {
  const Value& value = graph_.value(output.value);
  return value.kind == ValueKind::kTensor && value.meta.sizes.empty() &&
         dtype_is_floating(value.meta.dtype);
}

void Importer::find_loss() {
  if (graph_.loss_output != kNone) return;
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    if (!scalar_loss(graph_.outputs[i])) continue;
    const bool named = graph_.outputs[i].name == "loss";
    if (graph_.loss_output == kNone || named) graph_.loss_output = static_cast<int32_t>(i);
    if (named) return;
  }
}

Status Importer::tie() {
  std::map<std::string, std::vector<size_t>> by_file;
  for (size_t i = 0; i < graph_.leaves.size(); ++i) {
    if (graph_.leaves[i].kind == LeafKind::kParameter) {
      by_file[graph_.leaves[i].weight.path].push_back(i);
    }
  }
  std::vector<size_t> first_of(graph_.leaves.size());  // the first leaf of the same weight
  std::iota(first_of.begin(), first_of.end(), size_t{0});
  for (auto& [path, members] : by_file) {
    const auto weight = [this](size_t leaf) -> const WeightRef& {
      return graph_.leaves[leaf].weight;
    };
    std::stable_sort(members.begin(), members.end(), [&](size_t a, size_t b) {
      return std::pair(weight(a).storage_offset, end_of(weight(a))) <
             std::pair(weight(b).storage_offset, end_of(weight(b)));
    });
    size_t widest = members.front();  // reaches furthest of those before
    for (size_t i = 1; i < members.size(); ++i) {
      const size_t leaf = members[i];
      if (weight(leaf) == weight(widest)) {
        first_of[leaf] = first_of[widest];
      } else if (weight(leaf).storage_offset < end_of(weight(widest)) &&
                 weight(widest).storage_offset < end_of(weight(leaf))) {
        return make_error(Code::kRefused,
                          fmt::format("parameters '{}' and '{}' share a part of one storage",
                                      graph_.leaves[std::min(leaf, widest)].target,
                                      graph_.leaves[std::max(leaf, widest)].target),
                          "make them the same parameter, or separate ones");
      } else if (end_of(weight(leaf)) >= end_of(weight(widest))) {
        widest = leaf;
      }
    }
  }
  int32_t next_group = 0;
  for (auto& [path, members] : by_file) {
    std::sort(members.begin(), members.end());
    for (const size_t leaf : members) {
      Leaf& first = graph_.leaves[first_of[leaf]];
      if (first_of[leaf] == leaf) continue;
      if (first.tied_group == kNone) first.tied_group = next_group++;
      graph_.leaves[leaf].tied_group = first.tied_group;
    }
  }
  return {};
}

}  // namespace weft::opdag
