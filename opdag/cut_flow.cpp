#include "opdag/cut_flow.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "opdag/op_table.h"

namespace weft::opdag {
namespace {

void sort_unique(std::vector<int32_t>& items) {
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
}

// Buffers are one when they have one name or one piece of one weight file.
class BufferKeys {
 public:
  explicit BufferKeys(const Graph& graph) {
    std::map<std::tuple<std::string, int64_t>, int32_t> by_weight;
    for (const Leaf& leaf : graph.leaves) {
      if (leaf.kind == LeafKind::kUserInput) continue;
      int32_t key = count_;
      if (const auto found = by_name_.find(leaf.target); found != by_name_.end()) {
        key = found->second;
      } else if (!leaf.weight.path.empty()) {
        key = by_weight.try_emplace({leaf.weight.path, leaf.weight.storage_offset}, key)
                  .first->second;
      }
      by_name_[leaf.target] = key;
      by_value_[leaf.value] = key;
      count_ = std::max(count_, key + 1);
    }
  }
  int32_t of_value(ValueId id) const { return lookup(by_value_, id); }
  int32_t of_name(const std::string& target) const { return lookup(by_name_, target); }
  int32_t count() const { return count_; }

 private:
  template <typename Map, typename Key>
  static int32_t lookup(const Map& map, const Key& key) {
    const auto found = map.find(key);
    return found == map.end() ? kNone : found->second;
  }
  std::map<std::string, int32_t> by_name_;
  std::map<ValueId, int32_t> by_value_;
  int32_t count_ = 0;
};

// By key: whether an operator writes such a buffer, or it is updated.
std::vector<bool> written_buffers(const Graph& graph, const BufferKeys& keys) {
  std::vector<bool> written(static_cast<size_t>(keys.count()), false);
  for (const Node& node : graph.nodes) {
    const OpInfo* info = find_op(node.op);
    if (info == nullptr) continue;
    for (std::string_view name : info->writes_buffers) {
      const Argument* argument = node.find(name);
      const auto* value = argument ? std::get_if<ValueArg>(argument) : nullptr;
      const int32_t key = value ? keys.of_value(value->id) : kNone;
      if (key != kNone) written[static_cast<size_t>(key)] = true;
    }
  }
  for (const BufferUpdate& update : graph.buffer_updates) {
    if (const int32_t key = keys.of_name(update.target); key != kNone) {
      written[static_cast<size_t>(key)] = true;
    }
  }
  return written;
}

// For each buffer that anything writes: all nodes that write, update or read it.
void add_buffer_sets(const Graph& graph, const Flow& flow,
                     std::vector<std::vector<int32_t>>& sets) {
  const BufferKeys keys(graph);
  std::vector<std::vector<int32_t>> touched(static_cast<size_t>(keys.count()));
  const std::vector<bool> written = written_buffers(graph, keys);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId id : inputs_of(graph.nodes[i])) {
      if (const int32_t key = keys.of_value(id); key != kNone) {
        touched[static_cast<size_t>(key)].push_back(static_cast<int32_t>(i));
      }
    }
  }
  for (const BufferUpdate& update : graph.buffer_updates) {
    const int32_t key = keys.of_name(update.target);
    if (key == kNone) continue;
    const int32_t producer = flow.producer[static_cast<size_t>(update.value)];
    if (producer != kNone) touched[static_cast<size_t>(key)].push_back(producer);
  }
  for (size_t key = 0; key < touched.size(); ++key) {
    sort_unique(touched[key]);
    if (written[key] && touched[key].size() > 1) sets.push_back(std::move(touched[key]));
  }
}

}  // namespace

int64_t bytes_made(const Graph& graph, const Node& node) {
  int64_t bytes = 0;
  for (ValueId id : outputs_of(graph, node)) bytes += meta_bytes(graph.value(id).meta);
  return bytes;
}

Flow::Flow(const Graph& graph)
    : producer(graph.values.size(), kNone),
      consumers(graph.values.size()),
      successors(graph.nodes.size()) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto position = static_cast<int32_t>(i);
    for (ValueId id : outputs_of(graph, graph.nodes[i])) {
      producer[static_cast<size_t>(id)] = position;
    }
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto position = static_cast<int32_t>(i);
    for (ValueId id : inputs_of(graph.nodes[i])) {
      if (id == kNone) continue;
      auto& users = consumers[static_cast<size_t>(id)];
      if (users.empty() || users.back() != position) users.push_back(position);
      const int32_t from = producer[static_cast<size_t>(id)];
      if (from != kNone && from != position) {
        successors[static_cast<size_t>(from)].push_back(position);
      }
    }
  }
  for (auto& next : successors) sort_unique(next);
}

std::vector<bool> values_as_loaded(const Graph& graph) {
  const BufferKeys keys(graph);
  const std::vector<bool> written = written_buffers(graph, keys);
  std::vector<bool> result(graph.values.size(), false);
  for (const Leaf& leaf : graph.leaves) {
    const bool kept =
        leaf.kind == LeafKind::kConstant || (leaf.kind == LeafKind::kBuffer && !leaf.persistent);
    const int32_t key = keys.of_value(leaf.value);
    if (kept && !(key != kNone && written[static_cast<size_t>(key)])) {
      result[static_cast<size_t>(leaf.value)] = true;
    }
  }
  return result;
}

std::vector<std::vector<int32_t>> inseparable_sets(const Graph& graph, const Flow& flow) {
  std::vector<std::vector<int32_t>> sets;
  std::map<int32_t, std::vector<int32_t>> groups;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const int32_t group = graph.nodes[i].atomic_group;
    if (group != kNone) groups[group].push_back(static_cast<int32_t>(i));
  }
  for (auto& [group, nodes] : groups) sets.push_back(std::move(nodes));
  // Only tensors travel: a list taken whole or a scalar stays with its maker.
  for (const Value& value : graph.values) {
    const int32_t from = flow.producer[static_cast<size_t>(value.id)];
    if (value.kind == ValueKind::kTensor || from == kNone) continue;
    std::vector<int32_t> set = flow.consumers[static_cast<size_t>(value.id)];
    set.push_back(from);
    sort_unique(set);
    sets.push_back(std::move(set));
  }
  add_buffer_sets(graph, flow, sets);
  std::erase_if(sets, [](const auto& set) { return set.size() < 2; });
  return sets;
}

}  // namespace weft::opdag
