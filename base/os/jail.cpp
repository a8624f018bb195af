#include "base/os/jail.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/log.h"
#include "base/os/landlock.h"
#include "base/os/seccomp.h"

namespace weft::os {
namespace {

constexpr int kOutOfMemoryScore = 500;  // of 1000; the default is 0

void add(JailReport& report, const Result<std::string>& done) {
  if (done.ok()) {
    report.applied.push_back(*done);
  } else {
    report.not_applied.push_back(done.error().message);
  }
}

Error system_error(const char* what) {
  return make_error(Code::kUnavailable, fmt::format("{}: {}", what, std::strerror(errno)));
}

Result<std::string> no_new_privileges() {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return system_error("no_new_privs");
  return std::string("no_new_privs");
}

// What counts against RLIMIT_DATA: private memory that may be written, touched or not.
uint64_t data_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  for (int i = 0; i < 6; ++i) file >> pages;  // the sixth number
  return file ? pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

double gibibytes(uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

Result<std::string> limit_resources(uint64_t max_open_files, uint64_t max_data_bytes) {
  const rlimit none{0, 0};
  if (::setrlimit(RLIMIT_CORE, &none) != 0) return system_error("limit of core dumps");
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return system_error("limit of open files");
  files.rlim_max = std::min<rlim_t>(files.rlim_max, max_open_files);
  files.rlim_cur = files.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &files) != 0) return system_error("limit of open files");
  if (max_data_bytes == 0) {
    return fmt::format("limits (no core dumps, {} open files)", files.rlim_max);
  }
  if (const uint64_t mapped = data_bytes(); mapped > max_data_bytes) {
    // As a sanitizer's shadow is: under the limit the next allocation of any size would fail.
    return make_error(Code::kUnavailable,
                      fmt::format("limit of memory: {:.3g} GiB, of which {:.3g} GiB are reserved",
                                  gibibytes(max_data_bytes), gibibytes(mapped)));
  }
  rlimit data{};
  if (::getrlimit(RLIMIT_DATA, &data) != 0) return system_error("limit of memory");
  data.rlim_max = std::min<rlim_t>(data.rlim_max, max_data_bytes);
  data.rlim_cur = data.rlim_max;
  if (::setrlimit(RLIMIT_DATA, &data) != 0) return system_error("limit of memory");
  return fmt::format("limits (no core dumps, {} open files, {:.3g} GiB of memory)", files.rlim_max,
                     gibibytes(data.rlim_max));
}

Result<std::string> give_way_in_memory() {
  std::ofstream file("/proc/self/oom_score_adj");
  file << kOutOfMemoryScore << std::flush;
  if (!file) {
    return make_error(Code::kUnavailable, "oom_score_adj: /proc/self does not take it");
  }
  return fmt::format("oom_score_adj {}", kOutOfMemoryScore);
}

size_t threads_of_this_process() {
  std::error_code code;
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task", code)) {
    ++count;
  }
  return count;
}

}  // namespace

std::optional<JailMode> jail_mode_from_name(std::string_view name) {
  if (name == "auto") return JailMode::kAuto;
  if (name == "required") return JailMode::kRequired;
  if (name == "off") return JailMode::kOff;
  return std::nullopt;
}

std::string JailReport::text() const {
  return fmt::format("jail: {}; not applied: {}",
                     applied.empty() ? "nothing" : fmt::format("{}", fmt::join(applied, ", ")),
                     complete() ? "nothing" : fmt::format("{}", fmt::join(not_applied, ", ")));
}

JailReport enter_jail(const JailPolicy& policy) {
  JailReport report;
  add(report, no_new_privileges());
  add(report, limit_resources(policy.max_open_files, policy.max_data_bytes));
  add(report, give_way_in_memory());
  const size_t threads = threads_of_this_process();
  add(report, restrict_files(policy));
  if (threads > 1) {
    report.not_applied.push_back(
        fmt::format("landlock for {} threads that ran before", threads - 1));
  }
  add(report, restrict_calls());
  return report;
}

Status enter_jail(JailMode mode, const JailPolicy& policy) {
  if (mode == JailMode::kOff) {
    log_info("jail: off");
    return {};
  }
  const JailReport report = enter_jail(policy);
  if (report.complete()) {
    log_info("{}", report.text());
    return {};
  }
  if (mode == JailMode::kAuto) {
    log_warning("{}", report.text());
    return {};
  }
  return make_error(Code::kDenied, fmt::format("the jail is required here; {}", report.text()),
                    "run a kernel with Landlock and seccomp, or set jail = \"auto\" in weftd");
}

}  // namespace weft::os
