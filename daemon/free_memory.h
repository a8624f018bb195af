// FreeMemory: what others leave of the memory of the device that computes. Read once a minute, and
// only while this daemon neither works nor measures, so that its own use is not in it. A card is
// asked by way of nvidia-smi, which may take seconds: a thread of its own ("weft-memory") does so.
// Main thread only.
#pragma once

#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "daemon/event_queue.h"
#include "daemon/task_runner.h"

namespace weft::daemon {

class FreeMemory {
 public:
  // Bytes; 0: cannot be told. Called on the thread of its own.
  using Read = std::function<uint64_t()>;
  // known_bytes: read a moment ago. events must not be run any more once this is gone; destruction
  // waits for a reading under way.
  FreeMemory(uint64_t known_bytes, Read read, EventQueue& events, const Clock& clock);

  // Call a few times a second; alone: no assignment, and nothing is measured.
  void tick(bool alone);
  // As read last; 0: unknown, or not read again since this daemon used some itself.
  uint64_t bytes() const { return bytes_; }
  bool reading() const { return reading_; }  // one is under way

 private:
  void took(uint64_t disturbances, uint64_t bytes);

  Read read_;
  EventQueue& events_;
  const Clock& clock_;
  uint64_t bytes_;
  uint64_t disturbances_ = 0;  // a reading that one falls into does not count
  bool reading_ = false;
  int64_t next_ms_;
  TaskRunner runner_{"weft-memory"};  // last: ends first
};

}  // namespace weft::daemon
