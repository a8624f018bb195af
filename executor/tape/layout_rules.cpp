// Views, copies and joins: the elements stay what they are.
#include <limits>

#include "executor/tape/rule.h"

namespace weft::executor::tape {
namespace {

Backward reshape(Call& call) {
  const std::vector<int64_t> shape = call.tensor(0).sizes().vec();
  call.run();
  return unary([shape](const at::Tensor& gradient) { return gradient.reshape(shape); });
}

// The shape stays too; expand is here because the tape sums to the argument's shape, and changes of
// element type because it converts back.
Backward same(Call& call) {
  call.run();
  return unary([](const at::Tensor& gradient) { return gradient; });
}

// A copy to another device has its gradient copied back.
Backward moved(Call& call) {
  const at::Device device = call.tensor(0).device();
  call.run();
  return unary([device](const at::Tensor& gradient) { return gradient.to(device); });
}

Backward transpose(Call& call) {
  const int64_t a = call.at(1).toInt(), b = call.at(2).toInt();
  call.run();
  return unary([a, b](const at::Tensor& gradient) { return gradient.transpose(a, b); });
}

Backward t(Call& call) {
  call.run();
  return unary([](const at::Tensor& gradient) { return gradient.t(); });
}

Backward permute(Call& call) {
  const std::vector<int64_t> order = call.at(1).toIntVector();
  std::vector<int64_t> back(order.size());
  const auto rank = static_cast<int64_t>(order.size());
  for (int64_t i = 0; i < rank; ++i) {
    back[static_cast<size_t>(wrap(order[static_cast<size_t>(i)], rank))] = i;
  }
  call.run();
  return unary([back](const at::Tensor& gradient) { return gradient.permute(back); });
}

Backward slice(Call& call) {
  const std::vector<int64_t> shape = call.tensor(0).sizes().vec();
  const int64_t dim = call.at(1).toInt(), step = call.at(4).toInt();
  const int64_t start = call.at(2).isNone() ? 0 : call.at(2).toInt();
  const int64_t end =
      call.at(3).isNone() ? std::numeric_limits<int64_t>::max() : call.at(3).toInt();
  call.run();
  return unary([=](const at::Tensor& gradient) {
    return at::slice_backward(gradient, shape, dim, start, end, step);
  });
}

Backward select(Call& call) {
  const std::vector<int64_t> shape = call.tensor(0).sizes().vec();
  const int64_t dim = call.at(1).toInt(), index = call.at(2).toInt();
  call.run();
  return unary(
      [=](const at::Tensor& gradient) { return at::select_backward(gradient, shape, dim, index); });
}

// Gradients of the parts of a split tensor, zeros where a part has none.
void fill(Tensors& parts, const std::vector<std::vector<int64_t>>& shapes) {
  parts.resize(shapes.size());
  at::TensorOptions options;
  for (const at::Tensor& part : parts) {
    if (part.defined()) options = part.options();
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].defined()) parts[i] = at::zeros(shapes[i], options);
  }
}

std::vector<std::vector<int64_t>> shapes_of(const c10::List<at::Tensor>& list) {
  std::vector<std::vector<int64_t>> shapes;
  for (const at::Tensor& tensor : list) shapes.push_back(tensor.sizes().vec());
  return shapes;
}

// self, how, dim
Backward split(Call& call) {
  const int64_t dim = call.at(2).toInt();
  call.run();
  return [dim, shapes = shapes_of(call.at(0).toTensorList())](Tensors& results, const Mask&,
                                                              Tensors& arguments) {
    fill(results, shapes);
    arguments[0] = at::cat(results, dim);
  };
}

Backward unbind(Call& call) {
  const int64_t dim = call.at(1).toInt();
  call.run();
  return [dim, shapes = shapes_of(call.at(0).toTensorList())](Tensors& results, const Mask&,
                                                              Tensors& arguments) {
    fill(results, shapes);
    arguments[0] = at::stack(results, dim);
  };
}

Backward cat(Call& call) {
  const auto parts = call.at(0).toTensorList();
  const int64_t dim = wrap(call.at(1).toInt(), at::Tensor(parts.get(0)).dim());
  std::vector<int64_t> lengths;
  for (const at::Tensor& part : parts) {
    // Empty vectors join anything, by an old rule.
    if (part.dim() <= dim || (part.dim() == 1 && part.numel() == 0)) return nullptr;
    lengths.push_back(part.size(dim));
  }
  call.run();
  return [dim, lengths](Tensors& results, const Mask& wanted, Tensors& arguments) {
    int64_t start = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      if (wanted[i]) arguments[i] = results[0].narrow(dim, start, lengths[i]);
      start += lengths[i];
    }
  };
}

Backward stack(Call& call) {
  const auto parts = call.at(0).toTensorList();
  const int64_t dim = wrap(call.at(1).toInt(), at::Tensor(parts.get(0)).dim() + 1);
  call.run();
  return [dim](Tensors& results, const Mask& wanted, Tensors& arguments) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i]) arguments[i] = results[0].select(dim, static_cast<int64_t>(i));
    }
  };
}

Backward roll(Call& call) {
  std::vector<int64_t> shifts = call.at(1).toIntVector(), dims = call.at(2).toIntVector();
  if (dims.empty()) return nullptr;
  for (int64_t& shift : shifts) shift = -shift;
  call.run();
  return unary([=](const at::Tensor& gradient) { return at::roll(gradient, shifts, dims); });
}

constexpr Rule kRules[] = {
    {"aten::view", reshape},
    {"aten::reshape", reshape},
    {"aten::_unsafe_view", reshape},
    {"aten::flatten.using_ints", reshape},
    {"aten::unflatten.int", reshape},
    {"aten::unsqueeze", reshape},
    {"aten::squeeze", reshape},
    {"aten::squeeze.dim", reshape},
    {"aten::squeeze.dims", reshape},
    {"aten::alias", same},
    {"aten::clone", same},
    {"aten::contiguous", same},
    {"aten::expand", same},
    {"aten::to.dtype", same},
    {"aten::to.dtype_layout", moved},
    {"aten::_to_copy", moved},
    {"aten::transpose.int", transpose},
    {"aten::t", t},
    {"aten::permute", permute},
    {"aten::slice.Tensor", slice},
    {"aten::select.int", select},
    {"aten::split.Tensor", split},
    {"aten::split_with_sizes", split},
    {"aten::chunk", split},
    {"aten::unbind.int", unbind},
    {"aten::cat", cat, Autocast::kWidest},
    {"aten::stack", stack, Autocast::kWidest},
    {"aten::roll", roll},
};

}  // namespace

std::span<const Rule> layout_rules() {
  return kRules;
}

}  // namespace weft::executor::tape
