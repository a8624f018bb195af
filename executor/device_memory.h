// How much memory there is where a stage computes, and how much it has used: of the card, or of the
// machine for a CPU. No CUDA headers: whatever accelerator libtorch was built with.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "executor/aten.h"

namespace weft::executor {

using CardMemory = std::function<Result<uint64_t>(at::Device)>;

// From here on the memory of cards is taken in segments that grow and shrink (PyTorch's allocator
// setting expandable_segments), unless the environment has settings of its own
// (PYTORCH_ALLOC_CONF). Otherwise what plain runs leave behind in pieces stands beside the memory
// of device graphs: 5 to 12 % of the peak (bench/executor). Before the first use of a card.
void use_expandable_segments();

// The whole memory of a card, whoever uses it; begins the process's use of the card.
Result<uint64_t> card_memory_bytes(at::Device card);

// Memory of a card that nobody uses; 0 for the CPU.
Result<uint64_t> free_memory_bytes(const std::string& device);

// The whole memory there is for the tensors of a stage on `device` ("", "cpu", "cuda:N").
Result<uint64_t> total_memory_bytes(const std::string& device,
                                    const CardMemory& of_card = card_memory_bytes);

// Largest memory so far: resident set, or of the card where the stage runs on one.
int64_t peak_memory_bytes(const std::string& device);

}  // namespace weft::executor
