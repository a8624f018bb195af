// Names of the enumerations of a job, as the job file, JSON and logs write them.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "job/spec.h"

namespace weft::job {

template <typename E>
struct Names;

template <>
struct Names<Optimizer> {
  static constexpr std::array<std::pair<std::string_view, Optimizer>, 3> kAll = {
      {{"sgd", Optimizer::kSgd}, {"adam", Optimizer::kAdam}, {"adamw", Optimizer::kAdamW}}};
};
template <>
struct Names<LrSchedule> {
  static constexpr std::array<std::pair<std::string_view, LrSchedule>, 3> kAll = {
      {{"constant", LrSchedule::kConstant},
       {"cosine", LrSchedule::kCosine},
       {"linear", LrSchedule::kLinear}}};
};
template <>
struct Names<Precision> {
  static constexpr std::array<std::pair<std::string_view, Precision>, 4> kAll = {
      {{"fp32", Precision::kFp32},
       {"bf16", Precision::kBf16},
       {"fp16", Precision::kFp16},
       {"fp64", Precision::kFp64}}};
};
template <>
struct Names<PipelineSchedule> {
  static constexpr std::array<std::pair<std::string_view, PipelineSchedule>, 4> kAll = {
      {{"auto", PipelineSchedule::kAuto},
       {"gpipe", PipelineSchedule::kGPipe},
       {"1f1b", PipelineSchedule::k1F1B},
       {"zb-h1", PipelineSchedule::kZbH1}}};
};
template <>
struct Names<Recompute> {
  static constexpr std::array<std::pair<std::string_view, Recompute>, 3> kAll = {
      {{"auto", Recompute::kAuto}, {"always", Recompute::kAlways}, {"never", Recompute::kNever}}};
};
template <>
struct Names<Replan> {
  static constexpr std::array<std::pair<std::string_view, Replan>, 2> kAll = {
      {{"auto", Replan::kAuto}, {"never", Replan::kNever}}};
};
template <>
struct Names<LossSource> {
  static constexpr std::array<std::pair<std::string_view, LossSource>, 3> kAll = {
      {{"graph", LossSource::kGraph},
       {"cross_entropy", LossSource::kCrossEntropy},
       {"mse", LossSource::kMse}}};
};

template <typename E>
std::string name_of(E value) {
  for (const auto& [name, known] : Names<E>::kAll) {
    if (known == value) return std::string(name);
  }
  return "?";
}

template <typename E>
std::optional<E> value_of(std::string_view name) {
  for (const auto& [known, value] : Names<E>::kAll) {
    if (known == name) return value;
  }
  return std::nullopt;
}

}  // namespace weft::job
