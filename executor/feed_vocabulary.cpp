#include "executor/feed_vocabulary.h"

#include <algorithm>
#include <vector>

#include "opdag/op_table.h"

namespace weft::executor {
namespace {

// Rows of the table an embedding node reads with `value` as its indices; 0: not such a node.
int64_t embedding_rows(const opdag::Graph& graph, const opdag::Node& node, opdag::ValueId value) {
  if (node.op != "aten::embedding") return 0;
  const auto* indices = node.find("indices");
  const auto* weight = node.find("weight");
  if (indices == nullptr || weight == nullptr) return 0;
  const auto* index_value = std::get_if<opdag::ValueArg>(indices);
  const auto* weight_value = std::get_if<opdag::ValueArg>(weight);
  if (index_value == nullptr || weight_value == nullptr || index_value->id != value) return 0;
  const auto& sizes = graph.value(weight_value->id).meta.sizes;
  return sizes.empty() ? 0 : sizes[0];
}

}  // namespace

int64_t vocabulary_of(const opdag::Graph& graph,
                      const std::map<std::string, job::Binding>& bindings) {
  std::vector<bool> carries_tokens(graph.values.size(), false);
  for (const auto& [input, binding] : bindings) {
    const opdag::Leaf* leaf = graph.find_leaf(input);
    if (binding.column != "tokens" || leaf == nullptr) continue;
    carries_tokens[static_cast<size_t>(leaf->value)] = true;
  }
  int64_t rows = 0;
  for (const opdag::Node& node : graph.nodes) {
    for (const opdag::ValueId id : opdag::inputs_of(node)) {
      if (!carries_tokens[static_cast<size_t>(id)]) continue;
      if (const int64_t found = embedding_rows(graph, node, id); found > 0) {
        rows = rows == 0 ? found : std::min(rows, found);
      }
      const opdag::OpInfo* info = opdag::find_op(node.op);
      if (info == nullptr || !info->view) continue;
      for (const opdag::ValueId output : node.outputs) {
        if (output != opdag::kNone) carries_tokens[static_cast<size_t>(output)] = true;
      }
    }
  }
  return rows;
}

}  // namespace weft::executor
