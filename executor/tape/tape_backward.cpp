// Plays a tape back: whole, or in two parts (recording.h).
//
// A value is early where an input of the first part flows into it. Everything that makes the
// gradient of an early value is early work, of all other values the rest's: a sum of gradients is
// made by one part alone, in the order of the whole.
#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <utility>

#include "executor/tape/tape.h"

namespace weft::executor::tape {

void Tape::add(int32_t slot, at::Tensor gradient) {
  at::Tensor& sum = gradients_[static_cast<size_t>(slot)];
  if (!sum.defined()) {
    sum = std::move(gradient);
    return;
  }
  // Ours alone, so nobody sees it change.
  const bool own = sum.use_count() == 1 && sum.has_storage() && sum.storage().use_count() == 1 &&
                   sum.is_non_overlapping_and_dense() &&
                   sum.scalar_type() == gradient.scalar_type() && sum.sizes() == gradient.sizes();
  if (own) {
    sum.add_(gradient);
  } else {
    sum = sum + gradient;
  }
}

void Tape::seed(std::vector<Seed> seeds) {
  gradients_.resize(carries_.size());
  for (Seed& seed : seeds) {
    const int32_t slot = (seed.tap ? taps_ : outputs_).at(seed.index);
    if (carries(slot)) add(slot, std::move(seed.gradient));
  }
}

// Empty: no gradient came.
Tensors Tape::take_results(const Record& record) {
  Tensors results(record.results.size());
  bool any = false;
  for (size_t i = 0; i < results.size(); ++i) {
    if (record.results[i] == kNoSlot) continue;
    results[i] = std::move(gradients_[static_cast<size_t>(record.results[i])]);
    gradients_[static_cast<size_t>(record.results[i])] = at::Tensor();
    any = any || results[i].defined();
  }
  return any ? std::move(results) : Tensors();
}

void Tape::differentiate(Record& record, Tensors& results, const Mask& wanted, Tensors& arguments) {
  if (record.backward) {
    record.backward(results, wanted, arguments);
    return;
  }
  const c10::impl::ForceDispatchKeyGuard above(above_);
  std::vector<Seed> seeds;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].defined()) seeds.push_back({false, i, std::move(results[i])});
  }
  arguments = record.call->backward(std::move(seeds));
}

void Tape::add_all(const Record& record, Tensors& arguments, const Mask& which) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!which[i] || !arguments[i].defined()) continue;
    const Argument& argument = record.arguments[i];
    at::Tensor& gradient = arguments[i];
    if (gradient.sizes() != at::IntArrayRef(argument.sizes)) {
      gradient = at::sum_to(std::move(gradient), argument.sizes);
    }
    if (gradient.scalar_type() != argument.type) gradient = gradient.to(argument.type);
    add(argument.slot, std::move(gradient));
  }
}

void Tape::play(Record& record) {
  Tensors results = take_results(record);
  if (results.empty()) return;
  if (record.is_alias()) {
    add(record.arguments[0].slot, std::move(results[0]));
    return;
  }
  Tensors arguments(record.arguments.size());
  differentiate(record, results, record.wanted, arguments);
  results.clear();
  add_all(record, arguments, record.wanted);
}

// Gradients of arguments that only lead to inputs of the second part wait: their work too, where
// the rule can be run apart.
void Tape::play_first(Record& record) {
  Mask early(record.arguments.size()), late(record.arguments.size());
  bool any_early = false, any_late = false;
  for (size_t i = 0; i < record.arguments.size(); ++i) {
    if (!carries(record.arguments[i].slot)) continue;
    const bool now = early_[static_cast<size_t>(record.arguments[i].slot)] != 0;
    (now ? early : late)[i] = true;
    (now ? any_early : any_late) = true;
  }
  if (!any_early) return;  // all of it is the rest's
  if (!any_late) {
    play(record);
    record = Record();
    return;
  }
  Tensors results = take_results(record);
  if (results.empty()) {
    record = Record();
    return;
  }
  Tensors arguments(record.arguments.size());
  if (record.splits) {
    record.pending = results;
    differentiate(record, results, early, arguments);
  } else {
    differentiate(record, results, record.wanted, arguments);
    record.made.resize(arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (late[i]) record.made[i] = std::move(arguments[i]);
    }
    record.backward = nullptr;
    record.call.reset();
  }
  add_all(record, arguments, early);
  record.wanted = std::move(late);
}

void Tape::play_rest(Record& record) {
  if (!record.made.empty()) {
    add_all(record, record.made, record.wanted);
  } else if (!record.pending.empty()) {
    Tensors arguments(record.arguments.size());
    differentiate(record, record.pending, record.wanted, arguments);
    record.pending.clear();
    add_all(record, arguments, record.wanted);
  } else {
    play(record);
  }
}

void Tape::mark_early(const std::vector<bool>& first) {
  early_.assign(carries_.size(), 0);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (first[i] && carries(inputs_[i])) early_[static_cast<size_t>(inputs_[i])] = 1;
  }
  for (const Record& record : records_) {
    const bool early = std::ranges::any_of(record.arguments, [&](const Argument& argument) {
      return carries(argument.slot) && early_[static_cast<size_t>(argument.slot)] != 0;
    });
    if (!early) continue;
    for (int32_t slot : record.results) {
      if (slot != kNoSlot) early_[static_cast<size_t>(slot)] = 1;
    }
  }
}

std::vector<at::Tensor> Tape::take_inputs(bool early) {
  std::vector<at::Tensor> result(inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const int32_t slot = inputs_[i];
    if (!carries(slot)) continue;
    if (!early_.empty() && (early_[static_cast<size_t>(slot)] != 0) != early) continue;
    result[i] = std::move(gradients_[static_cast<size_t>(slot)]);
  }
  return result;
}

std::vector<at::Tensor> Tape::backward(std::vector<Seed> seeds) {
  {
    const Below below;
    seed(std::move(seeds));
  }
  return backward_rest();  // nothing is early: the rest is all
}

std::vector<at::Tensor> Tape::backward_first(std::vector<Seed> seeds,
                                             const std::vector<bool>& first) {
  above_ = c10::impl::tls_local_dispatch_key_set();
  const Below below;
  mark_early(first);
  seed(std::move(seeds));
  for (auto record = records_.rbegin(); record != records_.rend(); ++record) play_first(*record);
  return take_inputs(true);
}

std::vector<at::Tensor> Tape::backward_rest() {
  above_ = c10::impl::tls_local_dispatch_key_set();
  const Below below;
  for (auto record = records_.rbegin(); record != records_.rend(); ++record) {
    play_rest(*record);
    *record = Record();
  }
  records_.clear();
  std::vector<at::Tensor> result = take_inputs(false);
  gradients_.clear();
  return result;
}

}  // namespace weft::executor::tape
