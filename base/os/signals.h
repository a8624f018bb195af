// Signals as events: a thread ("weft-signals") waits for SIGTERM, SIGINT and SIGHUP and calls back;
// every other thread has them blocked. Make one in main, before any other thread starts.
#pragma once

#include <functional>
#include <memory>

namespace weft::os {

class SignalWatcher {
 public:
  explicit SignalWatcher(std::function<void(int signal)> on_signal);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The calling thread gets no signal any more: they belong to the main thread.
void block_signals();

// Names the calling thread, for debuggers and docs/threads.md; at most 15 characters.
void name_thread(const char* name);

}  // namespace weft::os
