// Rules of training that follow from the job alone: learning rate, weight decay, name patterns.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <numbers>

#include "job/spec.h"

namespace weft::job {
namespace {

// "ln_1", "bn2", "norm", "layer_norm", "input_layernorm", "LayerNorm".
bool is_norm_module(std::string name) {
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  while (!name.empty() &&
         (std::isdigit(static_cast<unsigned char>(name.back())) != 0 || name.back() == '_')) {
    name.pop_back();
  }
  const auto starts = [&](const char* prefix) { return name.rfind(prefix, 0) == 0; };
  if (name == "ln" || name == "bn" || name == "gn") return true;
  if (starts("ln_") || starts("bn_") || starts("gn_")) return true;
  return name.size() >= 4 && name.compare(name.size() - 4, 4, "norm") == 0;
}

}  // namespace

bool is_token_column(std::string_view column) {
  return column == "tokens" || column == "next_tokens";
}

// A group's own rate keeps its proportion to the base rate all the way down.
double lr_at(const TrainSpec& train, double base_lr, int64_t step) {
  if (step < train.warmup_steps) {
    return base_lr * static_cast<double>(step + 1) / static_cast<double>(train.warmup_steps);
  }
  if (train.schedule == LrSchedule::kConstant) return base_lr;
  const double lowest = train.lr > 0 ? base_lr * train.min_lr / train.lr : 0;
  const int64_t last = train.steps - train.warmup_steps - 1;  // reaches min_lr there
  const int64_t at = std::min(step - train.warmup_steps, last);
  const double progress = last > 0 ? static_cast<double>(at) / static_cast<double>(last) : 0;
  if (train.schedule == LrSchedule::kLinear) return base_lr + (lowest - base_lr) * progress;
  return lowest + (base_lr - lowest) * (1 + std::cos(std::numbers::pi * progress)) / 2;
}

bool decays_by_default(const std::string& parameter_name, size_t dimensions) {
  if (dimensions < 2) return false;
  const size_t last = parameter_name.rfind('.');
  if (parameter_name.substr(last + 1) == "bias") return false;
  if (last == std::string::npos) return true;
  const size_t before = parameter_name.rfind('.', last - 1);
  const size_t begin = last == 0 || before == std::string::npos ? 0 : before + 1;
  return !is_norm_module(parameter_name.substr(begin, last - begin));
}

// Greedy with one point of return, the last '*': linear in practice, no recursion.
bool glob_match(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace weft::job
