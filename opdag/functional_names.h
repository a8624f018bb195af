// Names of in-place operators and of their functional forms. Private to the importer.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace weft::opdag {

// "aten::add_.Tensor" -> {"aten::add_", ".Tensor"}
std::pair<std::string_view, std::string_view> split_overload(std::string_view op);

// "aten::add_.Tensor" -> "aten::add.Tensor", "aten::__iand__.Tensor" -> "aten::__and__.Tensor"
std::string without_underscore(std::string_view op);

// The functional form of an in-place operator; "" when the table has none.
std::string functional_of(std::string_view op);

// In-place operators whose functional form gives booleans, whatever it reads.
bool gives_boolean(std::string_view op);

// In-place operators that change a tensor's geometry or history, not its elements.
bool is_metadata_only(std::string_view op);

}  // namespace weft::opdag
