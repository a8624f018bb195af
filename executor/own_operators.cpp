#include "executor/own_operators.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <memory>
#include <vector>

namespace weft::executor {
namespace {

using at::Tensor;

struct Group {
  int64_t index, start, length;
};

std::vector<Group> groups_of(const Tensor& offs, int64_t rows) {
  const Tensor ends = offs.to(at::kCPU, at::kLong).contiguous();
  std::vector<Group> groups;
  int64_t start = 0;
  for (int64_t e = 0; e < ends.numel(); ++e) {
    const int64_t end = ends.const_data_ptr<int64_t>()[e];
    TORCH_CHECK(end >= start && end <= rows, "grouped_mm: offset ", e, " is ", end, ", outside of ",
                start, " to ", rows);
    if (end > start) groups.push_back({e, start, end - start});
    start = end;
  }
  return groups;
}

class GroupedMm : public torch::autograd::Function<GroupedMm> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input,
                        const Tensor& weight, const Tensor& offs) {
    TORCH_CHECK(input.dim() == 2 && weight.dim() == 3 && offs.dim() == 1 &&
                    input.size(1) == weight.size(1) && offs.size(0) == weight.size(0),
                "grouped_mm: the shapes do not fit");
    context->save_for_backward({input, weight, offs});
    Tensor result = at::zeros({input.size(0), weight.size(2)}, input.options());
    for (const Group& group : groups_of(offs, input.size(0))) {
      Tensor part = result.narrow(0, group.start, group.length);
      at::mm_out(part, input.narrow(0, group.start, group.length), weight.select(0, group.index));
    }
    return result;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &input = saved[0], &weight = saved[1];
    const Tensor& gradient = gradients[0];
    Tensor of_input, of_weight;
    if (context->needs_input_grad(0)) of_input = at::zeros_like(input);
    if (context->needs_input_grad(1)) of_weight = at::zeros_like(weight);
    for (const Group& group : groups_of(saved[2], input.size(0))) {
      const Tensor rows = gradient.narrow(0, group.start, group.length);
      if (of_input.defined()) {
        Tensor part = of_input.narrow(0, group.start, group.length);
        at::mm_out(part, rows, weight.select(0, group.index).t());
      }
      if (of_weight.defined()) {
        Tensor part = of_weight.select(0, group.index);
        at::mm_out(part, input.narrow(0, group.start, group.length).t(), rows);
      }
    }
    return {of_input, of_weight, Tensor()};
  }
};

Tensor grouped_mm(const Tensor& input, const Tensor& weight, const Tensor& offs) {
  return GroupedMm::apply(input, weight, offs);
}

}  // namespace

void register_own_operators() {
  static const auto library = [] {
    auto made = std::make_unique<torch::Library>(torch::Library::DEF, "weft", std::nullopt,
                                                 __FILE__, __LINE__);
    made->def("grouped_mm(Tensor input, Tensor weight, Tensor offs) -> Tensor", grouped_mm);
    return made;
  }();
  (void)library;
}

}  // namespace weft::executor
