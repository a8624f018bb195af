// Exports that leave the batch open (torch.export.Dim for dimension 0 of every user input): before
// anything else reads the description, the symbol is replaced by the number of samples of a
// micro-batch, in every shape, stride and argument; operators that only compute such numbers go.
// What is left is what an export with that batch would have written. Pure.
#pragma once

#include <optional>

#include "opdag/import_json.h"

namespace weft::opdag {

struct OpenBatch {
  std::string symbol;             // "s77"
  std::optional<int64_t> sample;  // the batch of the example inputs
};

// Nothing: no user input has a symbolic dimension, or others than one batch for all of them.
std::optional<OpenBatch> open_batch_of(const Json& program);

// Errors: kInvalid if the export does not allow that batch. Throws on a wrong structure.
Status close_batch(Json& program, const OpenBatch& open, int64_t batch);

}  // namespace weft::opdag
