// Loop: a named thread that runs what is posted to it, in order. The broker has two: "weft-broker",
// the only owner of the core, and "weft-blobs" for transfers that touch the disk for long.
#pragma once

#include <functional>
#include <memory>

namespace weft::broker {

class Loop {
 public:
  explicit Loop(const char* name);
  ~Loop();  // stops
  // The thread begins; what was posted before waits for it.
  void start();
  void post(std::function<void()> work);  // any thread; dropped after stop
  // Calls `work` every period_ms until stop. Before the loop is busy; one at a time.
  void every_ms(int64_t period_ms, std::function<void()> work);
  // Runs what was posted before, then joins. Not from the loop itself.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::broker
