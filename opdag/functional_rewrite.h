// The rewriter behind make_functional: functional.cpp drives it, functional_safe.cpp decides what
// can be proven, functional_write.cpp makes the nodes of a write, functional_groups.cpp ties what
// stays in place. Private to the importer.
#pragma once

#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "opdag/functional_alias.h"

namespace weft::opdag {

// Disjoint sets.
class Sets {
 public:
  explicit Sets(size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), size_t{0}); }
  size_t find(size_t x) {
    while (parent_[x] != x) x = parent_[x] = parent_[parent_[x]];
    return x;
  }
  void join(size_t a, size_t b) { parent_[find(a)] = find(b); }

 private:
  std::vector<size_t> parent_;
};

inline size_t at(ValueId id) {
  return static_cast<size_t>(id);
}

bool is_contiguous(const TensorMeta& meta);

// Gives the nodes of each list one atomic group; lists (and groups before) that share a node are
// one.
void join_groups(Graph& graph, const std::vector<std::vector<size_t>>& lists);

class Rewriter {
 public:
  Rewriter(Graph& graph, NodeId next_id) : graph_(graph), next_id_(next_id) {}

  Status run();

 private:
  const TensorMeta& meta(ValueId id) const { return graph_.value(id).meta; }
  ValueId root(ValueId id) const { return map_.root[at(id)]; }
  const Alias& alias(ValueId id) const { return map_.of[at(id)]; }
  bool known(ValueId id) const { return at(id) < map_.root.size(); }

  // What is safe.
  void find_gradients();
  bool can_write_through(ValueId id) const;
  bool provable(const Node& node) const;
  void find_unsafe();

  // Rewriting.
  ValueId read(ValueId id);
  ValueId view_again(ValueId id, ValueId parent);
  void rewire(NamedArgument& argument);
  void emit(const Node& original);
  void settle(ValueId id);

  // Nodes of a write.
  ValueId fresh(const std::string& name, TensorMeta meta);
  ValueId make(std::string op, std::vector<NamedArgument> arguments, const std::string& name,
               TensorMeta meta);
  void write(const Node& original, Node node, ValueId self);
  void assign(ValueId id, ValueId content, int64_t now);
  void forget_odd_strides(ValueId self, const std::vector<ValueId>& path, int64_t now);
  ValueId computed(Node node, const Node& original, ValueId self);
  ValueId copied(const Node& original, ValueId self);
  ValueId written_back(const Alias& step, ValueId child, ValueId before, ValueId parent);

  // What follows.
  void update_buffers();
  void drop_dead_views();
  void group_unsafe();

  Graph& graph_;
  NodeId next_id_;
  AliasMap map_;
  std::vector<bool> gradient_;         // by root
  std::vector<int32_t> unsafe_;        // by value: its unprovable set, or kNone
  std::vector<ValueId> current_;       // by value: what stands for it now
  std::vector<int64_t> version_;       // by value: root version current_ belongs to
  std::vector<int64_t> root_version_;  // by root: writes so far
  const std::vector<Node>* originals_ = nullptr;
  std::vector<Node> out_;
  std::set<NodeId> made_;  // views: nodes that may go when nobody reads them
};

}  // namespace weft::opdag
