// Measurement: what this machine's device can do (job/device_profile.h), measured by a worker of
// its own and kept in a file for every device model, version of weft and number of threads; once,
// and again where the broker asks for it. The old profile holds until the new one is there.
//
//   wanted -> measuring --profile written--> known --again()--> wanted
//     ^           |     --worker failed, silent or dead--> wanted (later), known (a few failures)
//     +-- interrupt()
//
// Daemons that share the folder share profiles, and one measures at a time: measuring beside each
// other they would measure each other. Main thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/os/folder_lock.h"
#include "daemon/event_queue.h"
#include "daemon/worker_process.h"
#include "job/device_profile.h"

namespace weft::daemon {

struct MeasurementOptions {
  bool enabled = true;
  os::Path folder;  // of the profiles
  std::string worker_program, jail;
  std::string device, device_name;  // name: of the card, or the processor
  int32_t threads = 1;
  int64_t timeout_ms = 600000;  // of one worker: minutes at most of a processor others use too
  int64_t retry_ms = 600000;    // after a failure at most; first 10 s, then four times as long
  int most_failures = 5;
};

class Measurement {
 public:
  // done: a profile is there, from the file or new. On the main thread, by way of events.
  using Done = std::function<void(const job::DeviceProfile&)>;
  Measurement(MeasurementOptions options, EventQueue& events, const Clock& clock, Done done);
  ~Measurement();

  // Call a few times a second; idle: no assignment, no end in sight. Begins, gives up, looks
  // whether another daemon's profile has come.
  void tick(bool idle);
  // Real runs disagree with the profile: it is measured again when idle, unless another daemon has
  // done so since.
  void again(const std::string& why);
  // An assignment comes: the worker is killed at once.
  void interrupt(const std::string& why);

  const std::optional<job::DeviceProfile>& profile() const { return profile_; }
  bool measuring() const { return run_ != nullptr; }

 private:
  // Events of a worker that was killed find nobody.
  struct Run {
    std::unique_ptr<WorkerProcess> worker;
    std::string line;
  };
  void load();
  bool wanted() const { return options_.enabled && (!profile_ || again_); }
  void take(job::DeviceProfile profile);
  void begin();
  void on_exit(const Run* run, os::ExitStatus status);
  void fail(const std::string& why);

  MeasurementOptions options_;
  EventQueue& events_;
  const Clock& clock_;
  Done done_;
  os::Path file_;
  std::optional<job::DeviceProfile> profile_;
  std::optional<os::FolderLock> lock_;  // while the worker runs
  std::shared_ptr<Run> run_;
  bool again_ = false;  // though there is a profile
  int64_t deadline_ms_ = 0, next_ms_ = 0;
  int failures_ = 0;
};

}  // namespace weft::daemon
