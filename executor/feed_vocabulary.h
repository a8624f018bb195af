// How many token ids a model knows: the rows of the embedding its token inputs index.
#pragma once

#include <map>
#include <string>

#include "job/spec.h"
#include "opdag/graph.h"

namespace weft::executor {

// The least row count over the embeddings reached, through views, from inputs bound to `tokens`;
// 0: unknown. Labels (`next_tokens`) obey the same bound: they are ids of the same vocabulary.
int64_t vocabulary_of(const opdag::Graph& graph,
                      const std::map<std::string, job::Binding>& bindings);

}  // namespace weft::executor
