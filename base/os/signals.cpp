#include "base/os/signals.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <thread>

namespace weft::os {

struct SignalWatcher::Impl {
  std::function<void(int)> on_signal;
  std::atomic<bool> stopping{false};
  std::thread thread;
};

SignalWatcher::SignalWatcher(std::function<void(int)> on_signal) : impl_(std::make_unique<Impl>()) {
  impl_->on_signal = std::move(on_signal);
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  impl_->thread = std::thread([impl = impl_.get(), set] {
    name_thread("weft-signals");
    for (;;) {
      int received = 0;
      if (sigwait(&set, &received) != 0) continue;
      if (impl->stopping) return;
      impl->on_signal(received);
    }
  });
}

SignalWatcher::~SignalWatcher() {
  impl_->stopping = true;
  pthread_kill(impl_->thread.native_handle(), SIGHUP);
  impl_->thread.join();
}

void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

void name_thread(const char* name) {
  pthread_setname_np(pthread_self(), name);
}

}  // namespace weft::os
