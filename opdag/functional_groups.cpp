// Atomic groups of nodes that share memory which is written.
#include <algorithm>
#include <map>

#include "opdag/functional.h"
#include "opdag/functional_rewrite.h"
#include "opdag/op_table.h"

namespace weft::opdag {

void join_groups(Graph& graph, const std::vector<std::vector<size_t>>& lists) {
  Sets sets(graph.nodes.size());
  std::map<int32_t, size_t> old;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const int32_t group = graph.nodes[i].atomic_group;
    if (group != kNone) sets.join(i, old.emplace(group, i).first->second);
  }
  std::vector<bool> grouped(graph.nodes.size(), false);
  for (const auto& list : lists) {
    for (size_t i : list) {
      sets.join(i, list.front());
      grouped[i] = true;
    }
  }
  std::map<size_t, int32_t> number;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!grouped[i] && graph.nodes[i].atomic_group == kNone) continue;
    const auto next = static_cast<int32_t>(number.size());
    graph.nodes[i].atomic_group = number.emplace(sets.find(i), next).first->second;
  }
}

void Rewriter::group_unsafe() {
  std::map<int32_t, std::vector<size_t>> touching;  // by unsafe set
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    std::vector<ValueId> ids = inputs_of(graph_.nodes[i]);
    for (ValueId id : outputs_of(graph_, graph_.nodes[i])) ids.push_back(id);
    for (ValueId id : ids) {
      if (known(id) && unsafe_[at(id)] != kNone) touching[unsafe_[at(id)]].push_back(i);
    }
  }
  std::vector<std::vector<size_t>> groups;
  for (auto& [set, nodes] : touching) groups.push_back(std::move(nodes));
  join_groups(graph_, groups);
}

void group_written_buffers(Graph& graph) {
  const auto index_of = [&] {
    std::map<ValueId, std::vector<size_t>> readers;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (ValueId id : inputs_of(graph.nodes[i])) readers[id].push_back(i);
    }
    return readers;
  }();
  std::vector<std::vector<size_t>> lists;
  for (const Node& node : graph.nodes) {
    const OpInfo* info = find_op(node.op);
    if (info == nullptr) continue;
    for (std::string_view name : info->writes_buffers) {
      const Argument* argument = node.find(name);
      const auto* value = argument == nullptr ? nullptr : std::get_if<ValueArg>(argument);
      if (value == nullptr) continue;
      const auto readers = index_of.find(value->id);
      if (readers != index_of.end()) lists.push_back(readers->second);
    }
  }
  std::map<ValueId, size_t> producer;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId id : graph.nodes[i].outputs) {
      if (id != kNone) producer[id] = i;
    }
  }
  for (const BufferUpdate& update : graph.buffer_updates) {
    const Leaf* leaf = nullptr;
    for (const Leaf& l : graph.leaves) {
      if (l.target == update.target && l.kind != LeafKind::kUserInput) leaf = &l;
    }
    if (leaf == nullptr) continue;
    std::vector<size_t> list;
    if (const auto readers = index_of.find(leaf->value); readers != index_of.end()) {
      list = readers->second;
    }
    if (const auto made = producer.find(update.value); made != producer.end()) {
      list.push_back(made->second);
    }
    lists.push_back(std::move(list));
  }
  for (auto& list : lists) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  std::erase_if(lists, [](const auto& list) { return list.size() < 2; });
  join_groups(graph, lists);
}

}  // namespace weft::opdag
