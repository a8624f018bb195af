// Graphs made from graphs. Each function is pure: takes a valid graph, returns a valid graph; node
// and value ids of what remains do not change.
#pragma once

#include <string>
#include <vector>

#include "opdag/graph.h"

namespace weft::opdag {

// The evaluation graph: train flags of dropout and batch norm off, dropout probability zero, no
// buffer updates, no leaf nobody reads, outputs as before. Equals the module's .eval() exactly
// where modules differ by nothing but that; a random operator without a train flag adds a warning.
Result<Graph> derive_eval(const Graph& graph);

// Whether an evaluation graph is made of the training graph's own nodes (derive_eval), so that each
// node runs where the training node of its id runs. False for a separately exported model, whose
// ids are its own even where they are equal by chance.
bool derived_from(const Graph& eval, const Graph& train);

// Every float32 value, constant and dtype argument becomes float64 (leaves keep stored_dtype; the
// loader converts). How equality is proven.
Result<Graph> promote_f64(const Graph& graph);

// Keeps what the named outputs need (nodes, leaves). Buffer updates are kept, too, unless they need
// a user input that no output needs; so are parameters and persistent buffers that nothing reads
// any more: a checkpoint of the module holds them, and a strict load_state_dict asks for them.
// names empty: keep only the loss output. Unknown name: kNotFound listing the outputs there are.
Result<Graph> prune_to(const Graph& graph, const std::vector<std::string>& output_names);

enum class LossKind { kCrossEntropy, kMse };
// Appends a loss on a named output against a new user input `target_input`: cross_entropy takes
// integer labels of the output's shape without its class dimension (last for rank 3 and 2 rows of
// tokens: the output is flattened to [N, classes]); mse takes a tensor of the output's shape.
// The mean over all elements becomes the loss output.
Result<Graph> append_loss(const Graph& graph, LossKind kind, const std::string& output_name,
                          const std::string& target_input);

// Marks parameters whose original name matches any of the glob patterns (*, ?) as frozen, and all
// that are tied to them. A pattern that matches none: kNotFound.
Result<Graph> freeze(const Graph& graph, const std::vector<std::string>& patterns);

// Which values can receive a gradient: floating or complex, reached from a trainable parameter
// through differentiable operators. Indexed by ValueId.
std::vector<bool> values_with_gradient(const Graph& graph);

// Which nodes have a backward: those that make such a value. By position in graph.nodes.
std::vector<bool> nodes_with_backward(const Graph& graph);

}  // namespace weft::opdag
