// PyTorch's export (torch 2.9 to 2.11 at least) writes the last states of aten::lstm.input with a
// dimension too many: [layers, 1, batch, width] for [layers, batch, width]; what follows from them
// is written wrong, too, though the operators' arguments are right. This works the true shapes out
// again. Private to the importer.
#pragma once

#include "opdag/graph.h"

namespace weft::opdag {

// Needs derived fields. kRefused names the operator whose result it cannot work out.
Status correct_lstm_shapes(Graph& graph);

}  // namespace weft::opdag
