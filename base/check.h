// WEFT_CHECK: an assertion that stays on in release builds. For broken invariants of our own code
// only; input from the network, files or users is validated with Result, never asserted.
#pragma once

namespace weft {
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}

#define WEFT_CHECK(condition)                                               \
  do {                                                                      \
    if (!(condition)) ::weft::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
