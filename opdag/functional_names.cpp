#include "opdag/functional_names.h"

#include <fmt/format.h>

#include <set>

#include "opdag/functional.h"
#include "opdag/op_table.h"

namespace weft::opdag {
namespace {

// "aten::__iand__": Python's augmented assignments.
bool is_augmented(std::string_view base) {
  return base.starts_with("aten::__i") && base.ends_with("__");
}

}  // namespace

std::pair<std::string_view, std::string_view> split_overload(std::string_view op) {
  const size_t dot = op.find('.');
  return dot == op.npos ? std::pair{op, std::string_view{}}
                        : std::pair{op.substr(0, dot), op.substr(dot)};
}

std::string without_underscore(std::string_view op) {
  if (op == "aten::transpose_") return "aten::transpose.int";
  const auto [base, overload] = split_overload(op);
  if (is_augmented(base)) {
    return fmt::format("aten::__{}{}", base.substr(sizeof("aten::__i") - 1), overload);
  }
  return fmt::format("{}{}", base.substr(0, base.size() - 1), overload);
}

std::string functional_of(std::string_view op) {
  const OpInfo* info = find_op(op);
  if (info != nullptr && !info->functional.empty()) return std::string(info->functional);
  const std::string name = without_underscore(op);
  return find_op(name) != nullptr ? name : "";
}

bool gives_boolean(std::string_view op) {
  static const std::set<std::string_view> kNames = {"aten::eq_",
                                                    "aten::ne_",
                                                    "aten::lt_",
                                                    "aten::le_",
                                                    "aten::gt_",
                                                    "aten::ge_",
                                                    "aten::not_equal_",
                                                    "aten::less_",
                                                    "aten::less_equal_",
                                                    "aten::greater_",
                                                    "aten::greater_equal_",
                                                    "aten::logical_and_",
                                                    "aten::logical_or_",
                                                    "aten::logical_not_",
                                                    "aten::logical_xor_"};
  return kNames.contains(split_overload(op).first);
}

bool is_metadata_only(std::string_view op) {
  static const std::set<std::string_view> kNames = {
      "aten::detach_",      "aten::unsqueeze_",    "aten::squeeze_",
      "aten::squeeze_.dim", "aten::squeeze_.dims", "aten::transpose_",
      "aten::t_",           "aten::swapaxes_",     "aten::swapdims_"};
  return kNames.contains(op);
}

bool is_in_place(std::string_view op) {
  const std::string_view base = split_overload(op).first;
  if (is_augmented(base)) return true;
  return base.starts_with("aten::") && base.ends_with("_") && !base.ends_with("__");
}

}  // namespace weft::opdag
