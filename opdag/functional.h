// In-place operators become functional ones; see README.md, "In-place operators".
#pragma once

#include "opdag/graph.h"

namespace weft::opdag {

// "aten::relu_", "aten::add_.Tensor", "aten::__iand__.Tensor".
bool is_in_place(std::string_view op);

// Rewrites every in-place operator whose effect can be proven into its functional form, writes the
// result back through views, and rewires later reads of every alias. A mutated buffer or constant
// becomes a BufferUpdate. Alias sets that cannot be proven keep their in-place operators, and all
// nodes that touch such a set form one atomic group. Takes a graph that passed validate_structure,
// leaves one that passes it again. next_id: the first node id not in use.
Status make_functional(Graph& graph, NodeId next_id);

// Nodes that must see one copy of a written buffer (batch norms that share statistics; a reader and
// the updater of one buffer) form atomic groups.
void group_written_buffers(Graph& graph);

}  // namespace weft::opdag
