// TaskRunner: one named thread that runs blocking work (downloads, uploads) in order, so that the
// main thread never waits. Destruction drops what is queued and waits for the running task.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace weft::daemon {

class TaskRunner {
 public:
  explicit TaskRunner(std::string thread_name);
  ~TaskRunner();
  TaskRunner(const TaskRunner&) = delete;
  TaskRunner& operator=(const TaskRunner&) = delete;
  void post(std::function<void()> task);

 private:
  void loop();

  std::string name_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;  // last: starts when the rest exists
};

}  // namespace weft::daemon
