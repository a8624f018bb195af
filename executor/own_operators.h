// Operators of weft's own: what custom operators of well-known libraries become (opdag/op_table.cpp
// names them). They are registered with libtorch's dispatcher and run like its own.
//
// weft::grouped_mm(input [S, K], weight [E, K, N], offs [E]) -> [S, N]: rows offs[e-1] to offs[e]
// of the input times matrix e; rows behind the last offset give zeros. Hugging Face transformers'
// graphs of mixtures of experts carry it as transformers::grouped_mm_fallback. On a card it waits
// for offs. Offsets that fall or lie outside the rows throw.
#pragma once

namespace weft::executor {

// Once a process, before the first lookup; thread-safe.
void register_own_operators();

}  // namespace weft::executor
