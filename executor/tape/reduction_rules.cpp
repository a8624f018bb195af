// Sums, means and softmax.
#include <algorithm>

#include "executor/tape/rule.h"

namespace weft::executor::tape {
namespace {

// What a reduction did: enough to spread its gradient over the argument again.
struct Reduced {
  std::vector<int64_t> shape;  // of the argument
  std::vector<int64_t> dims;   // reduced, ascending, from the front
  bool keep = false;
  int64_t count = 1;  // elements that became one

  at::Tensor spread(at::Tensor gradient) const {
    if (!keep) {
      for (int64_t d : dims) gradient = gradient.unsqueeze(d);
    }
    return gradient.expand(shape);
  }
};

Reduced reduced(const at::Tensor& self, const at::IValue& dims, bool keep) {
  Reduced result;
  result.shape = self.sizes().vec();
  result.keep = keep;
  if (!dims.isNone()) result.dims = dims.toIntVector();
  for (int64_t& d : result.dims) d = wrap(d, self.dim());
  if (result.dims.empty()) {
    for (int64_t d = 0; d < self.dim(); ++d) result.dims.push_back(d);
  }
  std::sort(result.dims.begin(), result.dims.end());
  for (int64_t d : result.dims) {
    if (d < self.dim()) result.count *= self.size(d);
  }
  if (self.dim() == 0) result.dims.clear();
  return result;
}

Backward sum(Call& call) {
  const Reduced how = reduced(call.tensor(0), at::IValue(), false);
  call.run();
  return unary([how](const at::Tensor& gradient) { return how.spread(gradient); });
}

Backward sum_dims(Call& call) {
  const Reduced how = reduced(call.tensor(0), call.at(1), call.at(2).toBool());
  call.run();
  return unary([how](const at::Tensor& gradient) { return how.spread(gradient); });
}

Backward mean(Call& call) {
  const Reduced how = reduced(call.tensor(0), at::IValue(), false);
  call.run();
  return unary([how](const at::Tensor& gradient) { return how.spread(gradient) / how.count; });
}

Backward mean_dims(Call& call) {
  const Reduced how = reduced(call.tensor(0), call.at(1), call.at(2).toBool());
  call.run();
  return unary([how](const at::Tensor& gradient) { return how.spread(gradient) / how.count; });
}

// softmax.int and log_softmax.int: self, dim, dtype
Backward softmax(Call& call) {
  const int64_t dim = call.at(1).toInt();
  const at::Tensor result = call.run();
  return unary([result, dim](const at::Tensor& gradient) {
    return at::_softmax_backward_data(gradient, result, dim, result.scalar_type());
  });
}

Backward log_softmax(Call& call) {
  const int64_t dim = call.at(1).toInt();
  const at::Tensor result = call.run();
  return unary([result, dim](const at::Tensor& gradient) {
    return at::_log_softmax_backward_data(gradient, result, dim, result.scalar_type());
  });
}

constexpr Rule kRules[] = {
    {"aten::sum", sum, Autocast::kFloat},
    {"aten::sum.dim_IntList", sum_dims, Autocast::kFloat},
    {"aten::mean", mean},
    {"aten::mean.dim", mean_dims},
    {"aten::softmax.int", softmax, Autocast::kFloat},
    {"aten::log_softmax.int", log_softmax, Autocast::kFloat},
};

}  // namespace

std::span<const Rule> reduction_rules() {
  return kRules;
}

}  // namespace weft::executor::tape
