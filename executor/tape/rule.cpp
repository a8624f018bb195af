#include "executor/tape/rule.h"

#include <map>

namespace weft::executor::tape {
namespace {

const std::map<std::string_view, const Rule*>& table() {
  static const auto rules = [] {
    std::map<std::string_view, const Rule*> all;
    for (const auto& part :
         {attention_rules(), convolution_rules(), layout_rules(), loss_rules(), matrix_rules(),
          normalization_rules(), pointwise_rules(), reduction_rules()}) {
      for (const Rule& rule : part) all.emplace(rule.op, &rule);
    }
    return all;
  }();
  return rules;
}

}  // namespace

const Rule* find_rule(std::string_view op) {
  const auto found = table().find(op);
  return found == table().end() ? nullptr : found->second;
}

std::vector<std::string_view> ops_with_rules() {
  std::vector<std::string_view> names;
  for (const auto& [name, rule] : table()) names.push_back(name);
  return names;
}

}  // namespace weft::executor::tape
