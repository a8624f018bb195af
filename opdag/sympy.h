// Numbers of symbolic sizes: evaluates an expression as exports write it, sympy's long form
// ("Mul(Integer(2), Symbol('s77', positive=True, integer=True))"), for one symbol of a given value.
// Pure; bounded in depth, checked against overflow.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

namespace weft::opdag {

using SymbolicNumber = std::variant<bool, int64_t, double>;

// Nothing: another symbol stands in it, a function that is not known, or no number comes out.
std::optional<SymbolicNumber> evaluate(std::string_view expression, std::string_view symbol,
                                       int64_t value);

// The same, a whole number.
std::optional<int64_t> evaluate_integer(std::string_view expression, std::string_view symbol,
                                        int64_t value);

}  // namespace weft::opdag
