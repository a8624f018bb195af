#include "executor/step_timer.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <utility>

namespace weft::executor {
namespace {

class HostMoment final : public Moment {
 public:
  void mark() override { at_ = std::chrono::steady_clock::now(); }
  bool passed() override { return true; }
  double seconds_since(const Moment& earlier) const override {
    const auto before = static_cast<const HostMoment&>(earlier).at_;
    return std::chrono::duration<double>(at_ - before).count();
  }

 private:
  std::chrono::steady_clock::time_point at_;
};

class StreamMoment final : public Moment {
 public:
  // Only events of this kind know their time.
  explicit StreamMoment(at::Device device)
      : device_(device),
        guard_(device.type()),
        event_(device.type(), c10::EventFlag::BACKEND_DEFAULT) {}
  void mark() override { event_.record(guard_.getStream(device_)); }
  bool passed() override { return event_.query(); }
  double seconds_since(const Moment& earlier) const override {
    constexpr double kPerMs = 1e-3;
    return kPerMs * static_cast<const StreamMoment&>(earlier).event_.elapsedTime(event_);
  }

 private:
  at::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  c10::Event event_;
};

}  // namespace

Moment::Make Moment::of(at::Device device) {
  if (device.is_cpu()) return [] { return std::make_unique<HostMoment>(); };
  return [device] { return std::make_unique<StreamMoment>(device); };
}

std::unique_ptr<Moment> StepTimer::moment() {
  if (free_.empty()) return make_();
  auto known = std::move(free_.back());
  free_.pop_back();
  return known;
}

void StepTimer::keep(Step step) {
  for (Span& span : step) {
    free_.push_back(std::move(span.begin));
    free_.push_back(std::move(span.end));
  }
}

void StepTimer::begin_step() {
  keep(std::exchange(step_, {}));
}

void StepTimer::begin_action() {
  if (!open_) open_ = moment();
  open_->mark();
}

void StepTimer::end_action() {
  auto end = moment();
  end->mark();
  step_.push_back({std::exchange(open_, nullptr), std::move(end)});
}

void StepTimer::end_step() {
  ended_.push_back(std::exchange(step_, {}));
}

double StepTimer::take_seconds() {
  double seconds = 0;
  // The stream comes to its moments in the order they were marked in.
  while (!ended_.empty() && (ended_.front().empty() || ended_.front().back().end->passed())) {
    seconds = 0;
    for (const Span& span : ended_.front()) seconds += span.end->seconds_since(*span.begin);
    keep(std::move(ended_.front()));
    ended_.pop_front();
  }
  return seconds;
}

}  // namespace weft::executor
