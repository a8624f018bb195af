#include "daemon/measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/log.h"
#include "base/version.h"
#include "job/json_read.h"

namespace weft::daemon {
namespace {

constexpr int64_t kFirstRetryMs = 10000;
constexpr int64_t kLookMs = 2000;  // while another daemon measures
// In a file's name: another form of the profile, or other things measured, is another file.
constexpr int kFormat = 3;

Result<job::DeviceProfile> read_profile(const std::string& text) {
  WEFT_TRY(const nlohmann::json json, job::parse_json(text, "the profile"));
  return job::profile_from_json(json);
}

}  // namespace

Measurement::Measurement(MeasurementOptions options, EventQueue& events, const Clock& clock,
                         Done done)
    : options_(std::move(options)), events_(events), clock_(clock), done_(std::move(done)) {
  const std::string key = fmt::format("{}\n{}\n{}\n{}\n{}", kFormat, kVersion, options_.device,
                                      options_.device_name, options_.threads);
  file_ = options_.folder / fmt::format("profile-{}.json", sha256_hex(key).substr(0, 16));
  if (!options_.enabled) {
    log_info("this machine is not measured: the setting measure is off");
    return;
  }
  load();
}

Measurement::~Measurement() {
  run_.reset();
}

// A profile of the file that is newer than what is known.
void Measurement::load() {
  const auto text = os::read_file(file_, job::kMaxProfileBytes);
  if (!text.ok()) return;
  auto read = read_profile(*text);
  if (!read.ok()) {
    log_warning("the profile {} is not used: {}", file_.string(), read.error().message);
    return;
  }
  if (!profile_ || read->measured_ms > profile_->measured_ms) take(std::move(*read));
}

void Measurement::take(job::DeviceProfile profile) {
  profile_ = std::move(profile);
  again_ = false;
  done_(*profile_);
}

void Measurement::again(const std::string& why) {
  if (!options_.enabled) {
    log_info("this machine is not measured again ({}): the setting measure is off", why);
    return;
  }
  log_info("this machine is measured again when idle: {}", why);
  again_ = true;
  failures_ = 0;
}

void Measurement::tick(bool idle) {
  const int64_t now = clock_.monotonic_ms();
  if (run_ && now >= deadline_ms_) {
    return fail(fmt::format("it took more than {} ms", options_.timeout_ms));
  }
  if (!wanted() || run_ || !idle || now < next_ms_) return;
  if (failures_ >= options_.most_failures) return;
  next_ms_ = now + kLookMs;
  load();  // another daemon may have measured the same device
  if (wanted()) begin();
}

void Measurement::begin() {
  const os::Path turn = options_.folder / "measuring";
  if (auto made = os::make_directories(turn, 0700); !made.ok()) return fail(made.error().text());
  auto lock = os::FolderLock::take(turn);
  if (!lock.ok()) {
    if (lock.error().code != Code::kExists) fail(lock.error().text());
    return;
  }
  lock_.emplace(std::move(*lock));
  auto run = std::make_shared<Run>();
  std::weak_ptr<Run> weak = run;
  auto worker = WorkerProcess::start_command(
      {options_.worker_program, "measure", "--device", options_.device, "--threads",
       std::to_string(options_.threads), "--jail", options_.jail},
      options_.folder / "measure.log",
      [this, weak](std::string line) {
        events_.post([weak, line = std::move(line)]() mutable {
          if (auto self = weak.lock()) self->line = std::move(line);
        });
      },
      [this, weak](os::ExitStatus status) {
        events_.post([this, weak, status] {
          if (auto self = weak.lock()) on_exit(self.get(), status);
        });
      });
  if (!worker.ok()) return fail(worker.error().text());
  run->worker = std::move(*worker);
  run_ = std::move(run);
  deadline_ms_ = clock_.monotonic_ms() + options_.timeout_ms;
  log_info("measuring how fast {} ({}) is", options_.device, options_.device_name);
}

void Measurement::on_exit(const Run* run, os::ExitStatus status) {
  if (run != run_.get()) return;
  const std::string line = std::move(run_->line);
  if (status.signalled || status.code != 0) {
    return fail(fmt::format("the worker {} (its log: {})", status.text(),
                            (options_.folder / "measure.log").string()));
  }
  auto read = read_profile(line);
  if (!read.ok()) return fail(read.error().text());
  read->device_name = options_.device_name;
  read->measured_ms = clock_.wall_ms();
  run_.reset();
  const std::string text = job::profile_to_json(*read).dump(2) + "\n";
  if (auto written = os::write_file_atomic(file_, text); !written.ok()) {
    log_warning("the profile is not kept: {}", written.error().text());
  }
  lock_.reset();
  log_info("measured in {:.1f} s", read->seconds);
  take(std::move(*read));
}

void Measurement::interrupt(const std::string& why) {
  if (!run_) return;
  log_info("measuring is put off: {}", why);
  run_.reset();
  lock_.reset();
  next_ms_ = 0;
}

// Never fatal: the broker plans with the old profile, or as if all peers were alike.
void Measurement::fail(const std::string& why) {
  run_.reset();
  lock_.reset();
  ++failures_;
  // What disturbed it may be over soon, or not.
  const int64_t pause_ms = std::min(options_.retry_ms, kFirstRetryMs << (2 * (failures_ - 1)));
  next_ms_ = clock_.monotonic_ms() + pause_ms;
  log_warning("this machine could not be measured: {}; {}", why,
              failures_ < options_.most_failures ? fmt::format("again in {} s", pause_ms / 1000)
              : profile_ ? "the old profile stays, until the broker asks again"
                         : "not tried again before the daemon starts anew");
}

}  // namespace weft::daemon
