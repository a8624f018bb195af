#include "opdag/cost_view.h"

#include <map>
#include <string>

namespace weft::opdag {

std::string_view NodeView::base() const {
  std::string_view op = node_.op;
  if (const size_t at = op.rfind("::"); at != std::string_view::npos) op.remove_prefix(at + 2);
  return op.substr(0, op.find('.'));
}

std::string_view NodeView::overload() const {
  const std::string_view op = node_.op;
  const size_t dot = op.find('.');
  return dot == std::string_view::npos ? std::string_view{} : op.substr(dot + 1);
}

const TensorMeta* NodeView::tensor(std::string_view name) const {
  const Argument* argument = node_.find(name);
  const auto* value = argument ? std::get_if<ValueArg>(argument) : nullptr;
  if (value == nullptr || value->id == kNone) return nullptr;
  const Value& found = graph_.value(value->id);
  return found.kind == ValueKind::kTensor ? &found.meta : nullptr;
}

std::vector<const TensorMeta*> NodeView::tensors() const {
  std::vector<const TensorMeta*> found;
  for (ValueId id : inputs_of(node_)) {
    if (id == kNone) continue;
    const Value& value = graph_.value(id);
    if (value.kind == ValueKind::kTensor) found.push_back(&value.meta);
    for (ValueId part : value.elements) {
      if (part != kNone) found.push_back(&graph_.value(part).meta);
    }
  }
  return found;
}

std::vector<const TensorMeta*> NodeView::list(std::string_view name) const {
  std::vector<const TensorMeta*> found;
  const Argument* argument = node_.find(name);
  const auto* ids = argument ? std::get_if<ValueListArg>(argument) : nullptr;
  if (ids == nullptr) return found;
  for (ValueId id : ids->ids) {
    if (id != kNone) found.push_back(&graph_.value(id).meta);
  }
  return found;
}

const TensorMeta* NodeView::first_tensor() const {
  const auto all = tensors();
  return all.empty() ? nullptr : all.front();
}

std::vector<int64_t> NodeView::integers(std::string_view name) const {
  const Argument* argument = node_.find(name);
  if (argument == nullptr) return {};
  if (const auto* one = std::get_if<int64_t>(argument)) return {*one};
  std::vector<int64_t> found;
  if (const auto* list = std::get_if<IntListArg>(argument)) {
    for (const IntOrValue& item : list->items) {
      if (item.id != kNone) return {};
      found.push_back(item.literal);
    }
  }
  return found;
}

std::optional<int64_t> NodeView::integer(std::string_view name) const {
  const Argument* argument = node_.find(name);
  const auto* one = argument ? std::get_if<int64_t>(argument) : nullptr;
  return one ? std::optional(*one) : std::nullopt;
}

std::optional<double> NodeView::number(std::string_view name) const {
  const Argument* argument = node_.find(name);
  if (argument == nullptr) return std::nullopt;
  if (const auto* i = std::get_if<int64_t>(argument)) return static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(argument)) return *d;
  return std::nullopt;
}

bool NodeView::boolean(std::string_view name, bool otherwise) const {
  const Argument* argument = node_.find(name);
  const auto* flag = argument ? std::get_if<bool>(argument) : nullptr;
  return flag ? *flag : otherwise;
}

std::vector<const TensorMeta*> NodeView::outputs() const {
  std::vector<const TensorMeta*> found;
  for (ValueId id : node_.outputs) {
    if (id == kNone) continue;
    const Value& value = graph_.value(id);
    if (value.kind == ValueKind::kTensor) found.push_back(&value.meta);
    for (ValueId part : value.elements) {
      if (part != kNone) found.push_back(&graph_.value(part).meta);
    }
  }
  return found;
}

const TensorMeta* NodeView::output() const {
  const auto all = outputs();
  return all.empty() ? nullptr : all.front();
}

double NodeView::output_elements() const {
  double sum = 0;
  for (const TensorMeta* meta : outputs()) sum += elements(meta);
  return sum;
}

double NodeView::output_bytes() const {
  double sum = 0;
  for (const TensorMeta* meta : outputs()) sum += bytes(meta);
  return sum;
}

std::optional<double> NodeView::einsum_points() const {
  const Argument* argument = node_.find("equation");
  const auto* text = argument ? std::get_if<std::string>(argument) : nullptr;
  if (text == nullptr || text->size() > 512) return std::nullopt;
  const std::string_view inputs = std::string_view(*text).substr(0, text->find("->"));
  const auto operands = tensors();
  std::map<char, int64_t> sizes;
  double dots = 1;  // points of the dimensions an ellipsis stands for, largest operand
  size_t operand = 0, start = 0;
  while (start <= inputs.size()) {
    const size_t comma = std::min(inputs.find(',', start), inputs.size());
    std::string labels;
    size_t ellipsis = std::string::npos;
    for (char c : inputs.substr(start, comma - start)) {
      if (c == '.' && ellipsis == std::string::npos) ellipsis = labels.size();
      if (c != '.' && c != ' ') labels += c;
    }
    if (operand == operands.size()) return std::nullopt;
    const auto& shape = operands[operand++]->sizes;
    if (shape.size() < labels.size()) return std::nullopt;
    const size_t hidden = shape.size() - labels.size();
    if (hidden > 0 && ellipsis == std::string::npos) return std::nullopt;
    double points = 1;
    for (size_t i = 0, label = 0; i < shape.size(); ++i) {
      if (ellipsis != std::string::npos && i >= ellipsis && i < ellipsis + hidden) {
        points *= static_cast<double>(shape[i]);
      } else {
        auto& size = sizes[labels[label++]];
        size = std::max(size, shape[i]);
      }
    }
    dots = std::max(dots, points);
    start = comma + 1;
  }
  if (operand != operands.size()) return std::nullopt;
  for (const auto& [label, size] : sizes) dots *= static_cast<double>(size);
  return dots;
}

}  // namespace weft::opdag
