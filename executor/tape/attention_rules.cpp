// scaled_dot_product_attention: the kernel that PyTorch would choose for it, with that kernel's own
// backward. Masks are prepared as aten/src/ATen/native/transformers/attention.cpp prepares them.
#include <ATen/SDPBackend.h>

#include <limits>

#include "executor/tape/rule.h"

namespace weft::executor::tape {
namespace {

struct Attention {
  at::Tensor q, k, v;
  std::optional<at::Tensor> mask;  // added to the scores
  double dropout = 0;              // probability
  bool causal = false;
  std::optional<double> scale;
};

// PyTorch's choice for tensors that need gradients, which ours do not show.
at::SDPBackend choose(const Attention& a) {
  const at::AutoGradMode gradients(true);
  const at::Tensor query = a.q.detach().set_requires_grad(true);
  return static_cast<at::SDPBackend>(
      at::_fused_sdp_choice(query, a.k, a.v, a.mask, a.dropout, a.causal, a.scale, false));
}

Backward flash_on_cpu(Call& call, const Attention& a) {
  auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(a.q, a.k, a.v, 0.0, a.causal,
                                                                     a.mask, a.scale);
  call.give(out);
  return [a, out = out, sums = sums](Tensors& results, const Mask&, Tensors& arguments) {
    std::tie(arguments[0], arguments[1], arguments[2]) =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            results[0], a.q, a.k, a.v, out, sums, 0.0, a.causal, a.mask, a.scale);
  };
}

Backward flash_on_card(Call& call, const Attention& a) {
  if (a.q.size(-1) % 8 != 0 || a.mask) return nullptr;  // it pads the heads
  auto [out, sums, starts_q, starts_k, longest_q, longest_k, seed, offset, unused] =
      at::_scaled_dot_product_flash_attention(a.q, a.k, a.v, a.dropout, a.causal, false, a.scale);
  call.give(out);
  return [=, out = out, sums = sums, starts_q = starts_q, starts_k = starts_k,
          longest_q = longest_q.expect_int(), longest_k = longest_k.expect_int(), seed = seed,
          offset = offset](Tensors& results, const Mask&, Tensors& arguments) {
    std::tie(arguments[0], arguments[1], arguments[2]) =
        at::_scaled_dot_product_flash_attention_backward(
            results[0], a.q, a.k, a.v, out, sums, starts_q, starts_k, longest_q, longest_k,
            a.dropout, a.causal, seed, offset, a.scale);
  };
}

constexpr int64_t kAlignment = 16;  // elements; of the rows of a mask

bool aligned(const at::Tensor& mask) {
  for (int64_t d = 0; d + 1 < mask.dim(); ++d) {
    if (mask.stride(d) % kAlignment != 0) return false;
  }
  return mask.stride(-1) == 1;
}

at::Tensor for_efficient(const at::Tensor& mask, const Attention& a) {
  at::Tensor result = mask;
  if (!aligned(mask)) {
    const int64_t columns = mask.size(-1);
    const int64_t more = columns % kAlignment == 0 ? 0 : kAlignment - columns % kAlignment;
    if (more != 0) result = at::pad(mask, {0, more}).slice(-1, 0, columns);
  }
  return result.expand({a.q.size(0), a.q.size(1), a.q.size(2), a.k.size(2)});
}

Backward efficient_on_card(Call& call, const Attention& a) {
  const auto mask = a.mask ? std::optional<at::Tensor>(for_efficient(*a.mask, a)) : std::nullopt;
  auto [out, sums, seed, offset] = at::_scaled_dot_product_efficient_attention(
      a.q, a.k, a.v, mask, /*compute_log_sumexp=*/true, a.dropout, a.causal, a.scale);
  call.give(out);
  return [=, out = out, sums = sums, seed = seed, offset = offset](
             Tensors& results, const Mask& wanted, Tensors& arguments) {
    at::Tensor of_mask;
    std::tie(arguments[0], arguments[1], arguments[2], of_mask) =
        at::_scaled_dot_product_efficient_attention_backward(
            results[0], a.q, a.k, a.v, mask.value_or(at::Tensor()), out, sums, seed, offset,
            a.dropout, {wanted[0], wanted[1], wanted[2], false}, a.causal, a.scale);
  };
}

// query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
Backward attention(Call& call) {
  Attention a{call.tensor(0),
              call.tensor(1),
              call.tensor(2),
              call.optional(3),
              call.at(4).toDouble(),
              call.at(5).toBool(),
              call.at(6).toOptional<double>()};
  if (call.at(7).toBool() || call.wants(3)) return nullptr;
  if (a.dropout != 0 && a.q.is_cpu()) return nullptr;  // no kernel there drops any
  if (a.q.dim() != 4 || a.k.dim() != 4 || a.v.dim() != 4 || a.q.numel() == 0) return nullptr;
  if (a.mask && !a.mask->defined()) a.mask.reset();
  const at::SDPBackend kernel = choose(a);
  if (a.mask && a.mask->scalar_type() == at::kBool) {
    a.mask = at::zeros_like(*a.mask, a.mask->options().dtype(a.q.scalar_type()))
                 .masked_fill_(a.mask->logical_not(), -std::numeric_limits<double>::infinity());
  }
  if (kernel == at::SDPBackend::flash_attention) {
    return a.q.is_cpu() ? flash_on_cpu(call, a) : flash_on_card(call, a);
  }
  if (kernel == at::SDPBackend::efficient_attention) return efficient_on_card(call, a);
  return nullptr;
}

constexpr Rule kRules[] = {
    {"aten::scaled_dot_product_attention", attention, Autocast::kLower},
};

}  // namespace

std::span<const Rule> attention_rules() {
  return kRules;
}

}  // namespace weft::executor::tape
