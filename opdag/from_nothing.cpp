#include "opdag/from_nothing.h"

#include <algorithm>
#include <set>

#include "opdag/cut_flow.h"
#include "opdag/op_table.h"

namespace weft::opdag {
namespace {

// A core that does 10 GFLOP/s does as many while a line of 1.25 Gbit/s carries a byte. A constant
// that is fetched to compute it from has been paid for after as many micro-batches.
constexpr double kFlopsPerByte = 64;
// What the shortest message costs, in bytes.
constexpr double kMessageBytes = 4096;

// Sums of whole numbers are the same in any order.
bool makes_whole_numbers(const Graph& graph, const Node& node) {
  return std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
    return id == kNone || (graph.value(id).kind == ValueKind::kTensor &&
                           !dtype_can_have_gradient(graph.value(id).meta.dtype));
  });
}

bool repeatable(const Graph& graph, const Node& node) {
  const OpInfo* info = find_op(node.op);
  if (info == nullptr || draws_random(node) || node.atomic_group != kNone) return false;
  if (!info->writes_buffers.empty() || !info->functional.empty()) return false;
  return info->deterministic || makes_whole_numbers(graph, node);
}

// What each node and all it needs compute, counted once for every way there: no less than it is.
class Search {
 public:
  Search(const Graph& graph, const CutFlow& flow)
      : graph_(graph),
        flow_(flow),
        given_(values_as_loaded(graph)),
        work_(graph.nodes.size(), 0.0),
        found_(graph.nodes.size(), false) {
    std::vector<bool> kept(graph.nodes.size(), false);
    for (const auto& set : flow.inseparable) {
      for (int32_t node : set) kept[static_cast<size_t>(node)] = true;
    }
    int32_t left = kMostFromNothing;
    for (size_t i = 0; i < graph.nodes.size() && left > 0; ++i) {
      if (kept[i] || !from_nothing(i)) continue;
      found_[i] = true;
      --left;
    }
  }
  std::vector<bool> take() { return std::move(found_); }

 private:
  bool from_nothing(size_t position) {
    const Node& node = graph_.nodes[position];
    if (!repeatable(graph_, node)) return false;
    double work = 0;
    std::set<int32_t> makers;
    std::set<ValueId> leaves;
    for (ValueId id : inputs_of(node)) {
      const int32_t maker = flow_.producer[static_cast<size_t>(id)];
      if (maker == kNone) {
        if (!given_[static_cast<size_t>(id)]) return false;
        if (leaves.insert(id).second)
          work += static_cast<double>(meta_bytes(graph_.value(id).meta));
      } else {
        if (!found_[static_cast<size_t>(maker)]) return false;
        if (makers.insert(maker).second) work += work_[static_cast<size_t>(maker)];
      }
    }
    work += node_cost(graph_, node).flops_forward;
    work_[position] = work;
    return work <= kFlopsPerByte * (static_cast<double>(bytes_made(graph_, node)) + kMessageBytes);
  }

  const Graph& graph_;
  const Flow& flow_;
  const std::vector<bool> given_;
  std::vector<double> work_;
  std::vector<bool> found_;
};

std::vector<int32_t> senders(std::vector<int32_t> producer, const std::vector<bool>& copied) {
  for (int32_t& maker : producer) {
    if (maker != kNone && copied[static_cast<size_t>(maker)]) maker = kNone;
  }
  return producer;
}

}  // namespace

CutFlow::CutFlow(const Graph& graph)
    : Flow(graph),
      inseparable(inseparable_sets(graph, *this)),
      copied(Search(graph, *this).take()),
      sender(senders(producer, copied)) {}

std::vector<bool> nodes_from_nothing(const Graph& graph) {
  return CutFlow(graph).copied;
}

}  // namespace weft::opdag
