// Higher-order operators of the exporter that compute what their graph computes: torch.no_grad(), a
// region without autocast, activation checkpointing. The graph takes the node's place.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "opdag/import_reader.h"

namespace weft::opdag {
namespace {

constexpr int kMaxGraphDepth = 8;

struct Kind {
  std::string_view op;
  size_t graph;                 // which argument is the graph; its inputs follow
  std::optional<size_t> state;  // which argument says on or off
};
constexpr Kind kInlined[] = {
    {"higher_order::wrap_with_set_grad_enabled", 1, 0},
    {"higher_order::wrap_with_autocast", 4, 2},
    {"higher_order::tag_activation_checkpoint", 0, {}},
    {"higher_order::wrap_activation_checkpoint", 0, {}},
};

// Restores what belongs to the surrounding graph.
template <typename T>
class Restore {
 public:
  Restore(T& place, T inner) : place_(place), outer_(std::exchange(place, std::move(inner))) {}
  ~Restore() { place_ = std::move(outer_); }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  T& place_;
  T outer_;
};

}  // namespace

// None: not one of them, or one that weft refuses by name (autocast that is on).
std::optional<Importer::Region> Importer::region_of(const Json& json, const std::string& op) {
  for (const Kind& kind : kInlined) {
    if (kind.op != op) continue;
    const Json& inputs = json.at("inputs");
    if (inputs.size() <= kind.graph) return std::nullopt;
    if (union_member(inputs[kind.graph].at("arg")).first != "as_graph") return std::nullopt;
    Region region{op, kind.graph, true};
    if (kind.state) {
      const auto [type, value] = union_member(inputs[*kind.state].at("arg"));
      if (type != "as_bool") return std::nullopt;
      region.on = value->get<bool>();
    }
    if (region.on && op.ends_with("autocast")) return std::nullopt;
    return region;
  }
  return std::nullopt;
}

// What a region of torch.no_grad() reads from outside: nothing it computes has a gradient then, and
// what it writes in place keeps the gradient it had, as in PyTorch.
Result<ValueId> Importer::detached(ValueId id) {
  const Leaf* leaf = graph_.leaf_of(id);
  const bool constant = leaf != nullptr && !leaf->trainable;
  const Value& from = graph_.value(id);
  if (constant || from.kind != ValueKind::kTensor || !dtype_can_have_gradient(from.meta.dtype)) {
    return id;
  }
  Value value;
  value.id = static_cast<ValueId>(graph_.values.size());
  value.meta = from.meta;
  Node node;
  node.id = next_id_++;
  node.op = "aten::detach";
  node.arguments = {{"self", ValueArg{id}}};
  node.outputs = {value.id};
  value.name = fmt::format("{}detach.{}", prefix_, node.id);
  const ValueId made = value.id;
  graph_.values.push_back(std::move(value));
  graph_.nodes.push_back(std::move(node));
  return made;
}

Status Importer::inline_region(const Json& json, const Region& region) {
  const Json& inputs = json.at("inputs");
  const std::string& op = region.op;
  Node blamed;
  blamed.op = op;
  blamed.id = next_id_;
  if (depth_ >= kMaxGraphDepth) {
    return unsupported(blamed, fmt::format("graphs nested deeper than {}", kMaxGraphDepth));
  }
  const bool gradients = op.ends_with("set_grad_enabled");
  if (gradients && region.on && gradients_off_) {
    return unsupported(blamed, "gradients are switched on again inside torch.no_grad()");
  }
  if (op.ends_with("autocast") && graph_.warnings.empty()) {
    graph_.warnings.push_back(
        "the model switches autocast off for a part of itself; here that part is computed like the "
        "rest, in float32 unless train.precision of the job file says otherwise");
  }
  const Json& body = inputs[region.graph].at("arg").at("as_graph").at("graph");
  std::vector<ValueId> outer;
  for (size_t i = region.graph + 1; i < inputs.size(); ++i) {
    const std::string name = inputs[i].at("name").get<std::string>();
    if (!name.empty()) continue;  // an option: how a checkpoint is taken
    const auto [kind, value] = union_member(inputs[i].at("arg"));
    if (kind != "as_tensor") {
      return unsupported(blamed, fmt::format("its graph takes an argument of kind '{}'", kind));
    }
    WEFT_TRY(const ValueId id, lookup(*value));
    outer.push_back(id);
  }
  if (body.at("inputs").size() != outer.size()) {
    return corrupt(fmt::format("{}: its graph takes {} inputs and is given {}", op,
                               body.at("inputs").size(), outer.size()));
  }
  return inline_body(json, region, outer);
}

Status Importer::inline_body(const Json& json, const Region& region,
                             const std::vector<ValueId>& inputs) {
  const Json& body = json.at("inputs")[region.graph].at("arg").at("as_graph").at("graph");
  const bool off = region.op.ends_with("set_grad_enabled") && !region.on;
  std::unordered_map<std::string, ValueId> inner;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto name = body.at("inputs")[i].at("as_tensor").at("name").get<std::string>();
    ValueId id = inputs[i];
    if (off) {
      WEFT_TRY(id, detached(id));
    }
    if (!inner.emplace(name, id).second) {
      return corrupt(fmt::format("two inputs of a graph are called '{}'", name));
    }
  }
  std::vector<ValueId> results;
  {
    const std::string prefix = fmt::format("{}{}.", prefix_, next_id_);
    const Restore ids(ids_, std::move(inner));
    const Restore metas(metas_, &body.at("tensor_values"));
    const Restore names(prefix_, prefix);
    const Restore depth(depth_, depth_ + 1);
    const Restore gradients(gradients_off_, gradients_off_ || off);
    for (const Json& node : body.at("nodes")) {
      if (static_cast<size_t>(next_id_) >= kMaxNodes) {
        return make_error(Code::kTooLarge,
                          fmt::format("the graph has more than {} nodes", kMaxNodes));
      }
      WEFT_TRY_STATUS(read_node(node, next_id_++));
    }
    for (const Json& output : body.at("outputs")) {
      WEFT_TRY(const ValueId id, lookup(output.at("as_tensor")));
      results.push_back(id);
    }
  }
  // A list of results stands as one output, or as one each.
  std::vector<std::string> names;
  for (const Json& output : json.at("outputs")) {
    const auto [kind, value] = union_member(output);
    if (kind == "as_none") continue;
    const Json list = kind == "as_tensors" ? *value : Json::array({*value});
    for (const Json& item : list) names.push_back(item.at("name").get<std::string>());
  }
  if (names.size() != results.size()) {
    return corrupt(fmt::format("{}: its graph makes {} tensors, the node {}", region.op,
                               results.size(), names.size()));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!ids_.emplace(names[i], results[i]).second) {
      return corrupt(fmt::format("two values are called '{}'", names[i]));
    }
  }
  return {};
}

}  // namespace weft::opdag
