// EventQueue: closures posted from any thread, run in order by the daemon's main thread, which
// alone owns all daemon state.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace weft::daemon {

class EventQueue {
 public:
  using Event = std::function<void()>;

  void post(Event event) {
    {
      std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    ready_.notify_one();
  }

  // Runs what is queued, waiting at most timeout_ms for the first.
  void run_for(int64_t timeout_ms) {
    std::deque<Event> batch;
    {
      std::unique_lock lock(mutex_);
      ready_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                      [&] { return !events_.empty(); });
      batch.swap(events_);
    }
    for (Event& event : batch) event();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Event> events_;
};

}  // namespace weft::daemon
