// Alias analysis: which values share memory with which, and how each view is made from its parent.
// Private to the importer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "opdag/graph.h"

namespace weft::opdag {

enum class AliasKind : uint8_t {
  kRoot,       // owns its memory
  kIdentity,   // the same tensor under another name
  kDetach,     // the same tensor without its gradient
  kReshape,    // same elements in the same order, another shape
  kUnsqueeze,  // dim0
  kSqueeze,    // dim0, which has size 1
  kPermute,    // dims
  kSelect,     // dim0, start
  kSlice,      // dim0, start, end, step
  kOpaque,     // a view that can be made again but not written through (expand, diagonal)
};

struct Alias {
  AliasKind kind = AliasKind::kRoot;
  ValueId parent = kNone;
  int32_t node = kNone;         // index of the node that makes the view
  std::string parent_argument;  // name of its argument that is the parent
  int64_t dim0 = 0, start = 0, end = 0, step = 1;
  std::vector<int64_t> dims;
};

struct AliasMap {
  std::vector<Alias> of;                           // by value
  std::vector<ValueId> root;                       // by value
  std::vector<std::pair<ValueId, ValueId>> maybe;  // pairs that may or may not share memory
};

// In-place nodes give an identity alias of what they write to.
AliasMap find_aliases(const Graph& graph);

// The value an in-place node writes to; kNone when it is not a tensor argument.
ValueId written_by(const Node& node);

// Whether every element of a tensor has its own place and there are no holes.
bool is_dense(const TensorMeta& meta);
// Strides of a fresh result of an elementwise operator on such a tensor: its own order of
// dimensions without holes.
std::vector<int64_t> dense_strides(const TensorMeta& meta);
// Whether a tensor can be viewed in another shape without a copy.
bool can_view(const TensorMeta& meta, const std::vector<int64_t>& sizes);

}  // namespace weft::opdag
