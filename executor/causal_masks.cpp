#include "executor/causal_masks.h"

#include <map>
#include <vector>

#include "executor/program.h"
#include "opdag/op_table.h"

namespace weft::executor {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 26;
constexpr double kHidden = -1e30;  // added to a score: nothing is left of it

// The nodes a value needs, ascending; none where it needs anything from outside of them, or where
// two runs may differ.
std::vector<int32_t> makers(const opdag::Graph& graph, opdag::ValueId value) {
  std::set<int32_t> found;
  std::vector<opdag::ValueId> open{value};
  while (!open.empty()) {
    const opdag::ValueId id = open.back();
    open.pop_back();
    if (id == opdag::kNone) continue;
    const opdag::Value& next = graph.value(id);
    if (next.producer == opdag::kNone) return {};
    const int32_t position = graph.node_index(next.producer);
    if (!found.insert(position).second) continue;
    const opdag::Node& node = graph.nodes[static_cast<size_t>(position)];
    if (opdag::draws_random(node) || node.atomic_group != opdag::kNone) return {};
    for (opdag::ValueId input : opdag::inputs_of(node)) open.push_back(input);
  }
  return {found.begin(), found.end()};
}

bool lets_see_the_past(const at::Tensor& mask) {
  const int64_t length = mask.size(-1);
  const at::Tensor past = at::ones({length, length}, at::kBool).tril();
  if (mask.scalar_type() == at::kBool) return at::equal(mask, past.expand_as(mask));
  if (!mask.is_floating_point()) return false;
  const at::Tensor right = at::where(past, mask.eq(0), mask.le(kHidden));
  return right.all().item<bool>();
}

bool is_causal(const opdag::Graph& graph, opdag::ValueId value) {
  const auto& sizes = graph.value(value).meta.sizes;
  if (sizes.size() < 2 || sizes.back() != sizes[sizes.size() - 2] || sizes.back() < 1) return false;
  int64_t elements = 1;
  for (int64_t size : sizes) {
    if (size < 1 || size > kMostElements / elements) return false;
    elements *= size;
  }
  ProgramSpec spec;
  spec.nodes = makers(graph, value);
  spec.outputs = {value};
  if (spec.nodes.empty()) return false;
  const auto program = Program::compile(graph, spec);
  if (!program.ok()) return false;
  const auto values = program->run({}, {});
  return values.ok() && values->outputs[0].isTensor() &&
         lets_see_the_past(values->outputs[0].toTensor());
}

// The length of query or key, [..., length, width]; 0: not known. A mask of one element would be
// spread over any length.
int64_t length_of(const opdag::Graph& graph, const opdag::Node& node, const char* name) {
  const auto* argument = node.find(name);
  const auto* value = argument != nullptr ? std::get_if<opdag::ValueArg>(argument) : nullptr;
  if (value == nullptr) return 0;
  const auto& sizes = graph.value(value->id).meta.sizes;
  return sizes.size() < 2 ? 0 : sizes[sizes.size() - 2];
}

}  // namespace

std::set<int32_t> causal_attention(const opdag::Graph& graph) {
  std::set<int32_t> result;
  std::map<opdag::ValueId, bool> known;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const opdag::Node& node = graph.nodes[i];
    if (node.op != "aten::scaled_dot_product_attention") continue;
    const auto* argument = node.find("attn_mask");
    const auto* mask = argument != nullptr ? std::get_if<opdag::ValueArg>(argument) : nullptr;
    if (mask == nullptr) continue;
    const auto& sizes = graph.value(mask->id).meta.sizes;
    const int64_t length = sizes.empty() ? 0 : sizes.back();
    if (length_of(graph, node, "query") != length || length_of(graph, node, "key") != length) {
      continue;
    }
    auto [entry, fresh] = known.try_emplace(mask->id, false);
    if (fresh) entry->second = is_causal(graph, mask->id);
    if (entry->second) result.insert(static_cast<int32_t>(i));
  }
  return result;
}

}  // namespace weft::executor
