#include "opdag/op_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace weft::opdag {
namespace {

constexpr std::array<std::string_view, 2> kRunningStatsNames = {"running_mean", "running_var"};
constexpr std::span<const std::string_view> kRunningStats = kRunningStatsNames;
constexpr std::span<const std::string_view> kNoBuffers = {};

constexpr bool has_flag(std::string_view flags, char flag) {
  return flags.find(flag) != std::string_view::npos;
}

constexpr OpInfo make_row(std::string_view name, CostClass cost_class, std::string_view flags,
                          std::string_view functional, std::span<const std::string_view> writes,
                          std::string_view train_flag, std::string_view dropout_p) {
  OpInfo info;
  info.name = name;
  info.cost_class = cost_class;
  info.view = has_flag(flags, 'V');
  info.random = has_flag(flags, 'R');
  info.deterministic = !has_flag(flags, 'N');
  info.differentiable = !has_flag(flags, 'C');
  info.functional = functional;
  info.writes_buffers = writes;
  info.train_flag = train_flag;
  info.dropout_p = dropout_p;
  return info;
}

using enum CostClass;
#define WEFT_OP(name, cost_class, flags, functional, writes, train_flag, dropout_p)             \
  make_row("aten::" name, cost_class, flags, sizeof(functional) > 1 ? "aten::" functional : "", \
           writes, train_flag, dropout_p),
constexpr OpInfo kRows[] = {
#include "opdag/op_table_rows.inc"
};
#undef WEFT_OP

constexpr bool rows_are_sorted() {
  for (size_t i = 1; i < std::size(kRows); ++i) {
    if (!(kRows[i - 1].name < kRows[i].name)) return false;
  }
  return true;
}
static_assert(rows_are_sorted(), "keep opdag/op_table_rows.inc sorted by name, each name once");

// Operators of weft's own, registered by the executor (executor/own_operators.h): what operators of
// well-known libraries become (native_of).
constexpr OpInfo kOwnRows[] = {
    make_row("weft::grouped_mm", CostClass::kMatmul, "", "", kNoBuffers, "", ""),
};
struct Native {
  std::string_view custom, own;
};
constexpr Native kNatives[] = {
    {"transformers::grouped_mm_fallback", "weft::grouped_mm"},
};

// Advice for operators people meet; matched by the name without namespace and overload.
struct Advice {
  std::string_view base;
  std::string_view text;
};
constexpr std::string_view kDataDependent =
    "its result's shape or value depends on the data, which a fixed graph cannot express; rewrite "
    "the model with torch.where, masked_fill or a fixed capacity and export again";
constexpr std::string_view kDynamicShape =
    "it comes from a dynamic shape; export again without dynamic_shapes, at the micro-batch and "
    "sequence length to train with";
constexpr std::string_view kRawMemory =
    "it gives or re-reads raw memory; use torch.zeros, reshape or slicing instead and export again";
constexpr Advice kAdvice[] = {
    {"nonzero", kDataDependent},
    {"nonzero_static", kDataDependent},
    {"masked_select", kDataDependent},
    {"item", kDataDependent},
    {"_local_scalar_dense", kDataDependent},
    {"unique_consecutive", kDataDependent},
    {"_unique2", kDataDependent},
    {"unique_dim", kDataDependent},
    {"bincount", kDataDependent},
    {"repeat_interleave", kDataDependent},
    {"argwhere", kDataDependent},
    {"where", kDataDependent},
    {"nms",
     "detection post-processing is not part of training here; leave it out of the exported "
     "model"},
    {"sym_size", kDynamicShape},
    {"sym_numel", kDynamicShape},
    {"sym_stride", kDynamicShape},
    {"sym_constrain_range", kDynamicShape},
    {"sym_constrain_range_for_size", kDynamicShape},
    {"_assert_scalar", kDynamicShape},
    {"as_strided", kRawMemory},
    {"as_strided_", kRawMemory},
    {"set_", kRawMemory},
    {"resize_", kRawMemory},
    {"empty_strided", kRawMemory},
    {"empty_permuted", kRawMemory},
    {"new_empty_strided", kRawMemory},
    {"from_file", "a graph may not read files"},
    {"squeeze_", "use the form without the underscore and export again"},
    {"unsqueeze_", "use the form without the underscore and export again"},
    {"transpose_", "use the form without the underscore and export again"},
    {"t_", "use the form without the underscore and export again"},
    {"embedding_renorm_", "build the embedding without max_norm and export again"},
    {"wrap_with_set_grad_enabled",
     "move torch.no_grad() and set_grad_enabled out of forward (use .detach()) and export again"},
    {"wrap_with_autocast",
     "export the model in float32 without autocast; ask for bf16 with train.precision in the job "
     "file"},
    {"cond", "control flow in the graph is not supported; trace one branch and export again"},
    {"while_loop", "control flow in the graph is not supported; unroll the loop and export again"},
    {"map_impl", "control flow in the graph is not supported; unroll the loop and export again"},
    {"scan", "control flow in the graph is not supported; unroll the loop and export again"},
};

std::string_view base_name(std::string_view op) {
  if (const size_t at = op.rfind("::"); at != std::string_view::npos) op.remove_prefix(at + 2);
  return op.substr(0, op.find('.'));
}

std::string_view advice_for(std::string_view op) {
  const std::string_view base = base_name(op);
  for (const Advice& advice : kAdvice) {
    if (advice.base == base) return advice.text;
  }
  if (base.find("quantize") != std::string_view::npos) {
    return "quantized models are not trained here; export the floating-point model";
  }
  if (base.starts_with("_scaled_dot_product") || base.starts_with("_flash_attention")) {
    return "it is one device's kernel; export on the CPU, before run_decompositions, so that "
           "scaled_dot_product_attention stays whole";
  }
  if (!op.starts_with("aten::")) {
    return "only operators of PyTorch itself (aten) can run on peers; replace the custom operator "
           "by PyTorch code and export again";
  }
  return "export without run_decompositions, replace the operator by allowed ones, or propose a "
         "row for opdag/op_table_rows.inc";
}

// Other overloads of the same operator that are allowed, for the message.
std::string allowed_overloads(std::string_view op) {
  std::string found;
  if (!op.starts_with("aten::")) return found;
  const std::string_view base = base_name(op);
  for (const OpInfo& row : kRows) {
    if (base_name(row.name) != base) continue;
    found += found.empty() ? "" : ", ";
    found += row.name;
  }
  return found;
}

}  // namespace

const OpInfo* find_op(std::string_view name) {
  const auto* row =
      std::lower_bound(std::begin(kRows), std::end(kRows), name,
                       [](const OpInfo& a, std::string_view b) { return a.name < b; });
  if (row != std::end(kRows) && row->name == name) return row;
  const auto* own = std::find_if(std::begin(kOwnRows), std::end(kOwnRows),
                                 [&](const OpInfo& info) { return info.name == name; });
  return own != std::end(kOwnRows) ? own : nullptr;
}

bool draws_random(const Node& node) {
  const OpInfo* info = find_op(node.op);
  if (info == nullptr || !info->random) return false;
  if (!info->train_flag.empty()) {
    const Argument* train = node.find(info->train_flag);
    const bool* on = train != nullptr ? std::get_if<bool>(train) : nullptr;
    if (on != nullptr && !*on) return false;
  }
  if (info->dropout_p.empty()) return true;
  const Argument* p = node.find(info->dropout_p);  // absent: attention, whose default is zero
  if (p == nullptr) return false;
  if (const auto* number = std::get_if<double>(p)) return *number != 0;
  const auto* whole = std::get_if<int64_t>(p);
  return whole == nullptr || *whole != 0;
}

std::string_view native_of(std::string_view op) {
  for (const Native& native : kNatives) {
    if (native.custom == op) return native.own;
  }
  return op;
}

std::span<const OpInfo> all_ops() {
  return kRows;
}

Error refused_op(const Node& node) {
  // Names come from a stranger's file: a bounded part of them is shown.
  const std::string op = node.op.substr(0, 120);
  Error error;
  error.code = Code::kRefused;
  error.message =
      fmt::format("operator {} (node {}) is not on the list of allowed operators", op, node.id);
  error.next = advice_for(op);
  if (const std::string others = allowed_overloads(op); !others.empty()) {
    error.next += fmt::format("; allowed: {}", others);
  }
  error.node = fmt::format("{}", node.id);
  error.op = op;
  return error;
}

}  // namespace weft::opdag
