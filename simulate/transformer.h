// The built-in model of scenarios: a decoder-only transformer as a training graph, so that a
// scenario needs no export. Pure.
#pragma once

#include "job/spec.h"
#include "opdag/graph.h"
#include "simulate/scenario.h"

namespace weft::simulate {

// Inputs `tokens` and `targets`, [micro_batch, tokens] of int64; output `loss`, the mean cross
// entropy. Nodes are those torch.export gives for such a model. kInvalid for sizes a graph may not
// have.
Result<opdag::Graph> transformer_graph(const TransformerSpec& spec);

// A job that trains it with AdamW; steps, batch, stages and the rest are the caller's to set.
job::JobSpec transformer_job();

}  // namespace weft::simulate
