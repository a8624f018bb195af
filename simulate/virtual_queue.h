// VirtualQueue: what happens when, in virtual time. Of two things at one time the one asked for
// first happens first, so a run depends on nothing but its input. Single thread.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

namespace weft::simulate {

class VirtualQueue {
 public:
  // A stage of a run goes on; the many small events.
  struct Stage {
    int32_t run = 0, stage = 0;
  };
  std::function<void(Stage)> on_stage;

  double now() const { return now_; }
  void at(double time_s, Stage stage) { push(time_s, stage.run, stage.stage); }
  void at(double time_s, std::function<void()> call) {
    int32_t slot;
    if (free_.empty()) {
      slot = static_cast<int32_t>(calls_.size());
      calls_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    calls_[static_cast<size_t>(slot)] = std::move(call);
    push(time_s, kCall, slot);
  }
  void after(double seconds, std::function<void()> call) { at(now_ + seconds, std::move(call)); }

  // One thing; false when nothing is left before `end_s`.
  bool step(double end_s) {
    if (heap_.empty() || heap_.top().time_s > end_s) return false;
    const Entry entry = heap_.top();
    heap_.pop();
    now_ = entry.time_s;
    ++done_;
    if (entry.run != kCall) {
      on_stage({entry.run, entry.stage});
      return true;
    }
    const auto slot = static_cast<size_t>(entry.stage);
    const std::function<void()> call = std::move(calls_[slot]);
    calls_[slot] = nullptr;
    free_.push_back(entry.stage);
    call();
    return true;
  }
  uint64_t done() const { return done_; }

 private:
  static constexpr int32_t kCall = -1;
  struct Entry {
    double time_s = 0;
    uint64_t order = 0;
    int32_t run = 0, stage = 0;
    bool operator>(const Entry& other) const {
      return time_s != other.time_s ? time_s > other.time_s : order > other.order;
    }
  };
  void push(double time_s, int32_t run, int32_t stage) {
    heap_.push({time_s > now_ ? time_s : now_, ++order_, run, stage});
  }

  double now_ = 0;
  uint64_t order_ = 0, done_ = 0;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap_;
  std::vector<std::function<void()>> calls_;
  std::vector<int32_t> free_;
};

}  // namespace weft::simulate
