// StepTimer: how long a step's actions keep the computing device, by moments on its compute stream.
// A card works behind the compute thread: what the thread needs to queue an action says little of
// what the card needs for it. Nobody waits for the card, so a step's time is known some time after
// the thread has left it. On a CPU a moment is now. Compute thread only.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "executor/aten.h"

namespace weft::executor {

// A place in the compute stream's queue.
class Moment {
 public:
  using Make = std::function<std::unique_ptr<Moment>()>;
  static Make of(at::Device device);
  virtual ~Moment() = default;

  // Behind all that is queued by now, wherever it was before.
  virtual void mark() = 0;
  virtual bool passed() = 0;  // the device has come there; does not wait
  // Both have passed; of the same device.
  virtual double seconds_since(const Moment& earlier) const = 0;
};

class StepTimer {
 public:
  explicit StepTimer(Moment::Make make) : make_(std::move(make)) {}

  void begin_step();    // one that was not ended is forgotten
  void begin_action();  // once more: the action had to wait, what it took until now does not count
  void end_action();
  void end_step();  // its time is to be told

  // Seconds of the last step that was ended and that the device is done with by now, in all its
  // actions; 0: none since this was asked before.
  double take_seconds();

 private:
  struct Span {
    std::unique_ptr<Moment> begin, end;
  };
  using Step = std::vector<Span>;

  std::unique_ptr<Moment> moment();
  void keep(Step step);

  Moment::Make make_;
  std::vector<std::unique_ptr<Moment>> free_;  // making one costs as much as marking it
  std::unique_ptr<Moment> open_;               // where the action under way began
  Step step_;                                  // the one under way
  std::deque<Step> ended_;                     // that the device was not done with
};

}  // namespace weft::executor
