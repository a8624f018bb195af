#include "daemon/task_runner.h"

#include "base/os/signals.h"

namespace weft::daemon {

TaskRunner::TaskRunner(std::string thread_name)
    : name_(std::move(thread_name)), thread_([this] { loop(); }) {}

TaskRunner::~TaskRunner() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    tasks_.clear();
  }
  ready_.notify_one();
  thread_.join();
}

void TaskRunner::post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  ready_.notify_one();
}

void TaskRunner::loop() {
  os::name_thread(name_.c_str());
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      ready_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace weft::daemon
