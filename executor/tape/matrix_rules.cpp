// Matrix products and rows of matrices. As derivatives.yaml: a factor that lies transposed in
// memory gets its gradient laid out the same way, which is the layout its parameter has.
#include "executor/tape/rule.h"

namespace weft::executor::tape {
namespace {

bool column_major(const at::Tensor& matrix) {
  return matrix.stride(0) == 1 && matrix.stride(1) == matrix.size(0);
}

// Gradients of the factors of a.mm(b).
at::Tensor left_gradient(const at::Tensor& gradient, const at::Tensor& b, bool transposed) {
  return transposed ? b.mm(gradient.t()).t() : gradient.mm(b.t());
}
at::Tensor right_gradient(const at::Tensor& gradient, const at::Tensor& a, bool transposed) {
  return transposed ? gradient.t().mm(a).t() : a.t().mm(gradient);
}

Backward linear(Call& call) {
  const at::Tensor x = call.tensor(0), weight = call.tensor(1);
  if (x.dim() < 2) return nullptr;
  call.give(at::linear(x, weight, call.optional(2)));
  return [x = call.wants(1) ? x : at::Tensor(), weight = call.wants(0) ? weight : at::Tensor(),
          shape = x.sizes().vec(), inputs = weight.size(1),
          outputs = weight.size(0)](Tensors& results, const Mask& wanted, Tensors& arguments) {
    const at::Tensor gradient = results[0].reshape({-1, outputs});
    if (wanted[0]) arguments[0] = gradient.mm(weight).view(shape);
    if (wanted[1]) arguments[1] = gradient.t().mm(x.reshape({-1, inputs}));
    if (wanted[2]) arguments[2] = gradient.sum(0);
  };
}

Backward addmm(Call& call) {
  const at::Tensor a = call.tensor(1), b = call.tensor(2);
  const at::Scalar beta = call.at(3).toScalar(), alpha = call.at(4).toScalar();
  call.run();
  return [a = call.wants(2) ? a : at::Tensor(), b = call.wants(1) ? b : at::Tensor(),
          a_transposed = column_major(a), b_transposed = column_major(b), beta,
          alpha](Tensors& results, const Mask& wanted, Tensors& arguments) {
    const at::Tensor& gradient = results[0];
    if (wanted[0]) arguments[0] = scaled(gradient, beta);
    if (wanted[1]) arguments[1] = scaled(left_gradient(gradient, b, a_transposed), alpha);
    if (wanted[2]) arguments[2] = scaled(right_gradient(gradient, a, b_transposed), alpha);
  };
}

Backward mm(Call& call) {
  const at::Tensor a = call.tensor(0), b = call.tensor(1);
  call.run();
  return [a = call.wants(1) ? a : at::Tensor(), b = call.wants(0) ? b : at::Tensor(),
          a_transposed = column_major(a), b_transposed = column_major(b)](
             Tensors& results, const Mask& wanted, Tensors& arguments) {
    if (wanted[0]) arguments[0] = left_gradient(results[0], b, a_transposed);
    if (wanted[1]) arguments[1] = right_gradient(results[0], a, b_transposed);
  };
}

// Factors of two and more dimensions, batches broadcast.
Backward matmul(Call& call) {
  const at::Tensor a = call.tensor(0), b = call.tensor(1);
  if (a.dim() < 2 || b.dim() < 2) return nullptr;
  call.run();
  return [a = call.wants(1) ? a : at::Tensor(), b = call.wants(0) ? b : at::Tensor(),
          flat = b.dim() == 2 && a.dim() > 2](Tensors& results, const Mask& wanted,
                                              Tensors& arguments) {
    const at::Tensor& gradient = results[0];
    if (wanted[0]) arguments[0] = at::matmul(gradient, b.transpose(-2, -1));
    if (!wanted[1]) return;
    if (flat) {  // not a batch of products to be summed, but one
      arguments[1] = a.reshape({-1, a.size(-1)}).t().mm(gradient.reshape({-1, gradient.size(-1)}));
    } else {
      arguments[1] = at::matmul(a.transpose(-2, -1), gradient);
    }
  };
}

Backward embedding(Call& call) {
  if (call.at(4).toBool()) return nullptr;  // sparse
  const at::Tensor indices = call.tensor(1);
  const int64_t rows = call.tensor(0).size(0), padding = call.at(2).toInt();
  const bool scale = call.at(3).toBool();
  call.run();
  return unary([=](const at::Tensor& gradient) {
    return at::embedding_dense_backward(gradient, indices, rows, padding, scale);
  });
}

constexpr bool kSplits = true;
constexpr Rule kRules[] = {
    {"aten::linear", linear, Autocast::kLower, kSplits},
    {"aten::addmm", addmm, Autocast::kLower, kSplits},
    {"aten::mm", mm, Autocast::kLower, kSplits},
    {"aten::bmm", matmul, Autocast::kLower, kSplits},
    {"aten::matmul", matmul, Autocast::kLower, kSplits},
    {"aten::embedding", embedding},
};

}  // namespace

std::span<const Rule> matrix_rules() {
  return kRules;
}

}  // namespace weft::executor::tape
