#include "base/os/landlock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/os/fd.h"

// From linux/landlock.h, of which systems carry older versions than their kernels.
#ifndef __NR_landlock_create_ruleset
#define __NR_landlock_create_ruleset 444
#define __NR_landlock_add_rule 445
#define __NR_landlock_restrict_self 446
#endif

namespace weft::os {
namespace {

struct RulesetAttributes {
  uint64_t handled_files = 0;
  uint64_t handled_network = 0;  // from ABI 4
  uint64_t scoped = 0;           // from ABI 6
};

struct __attribute__((packed)) PathBeneath {
  uint64_t allowed = 0;
  int32_t parent = -1;
};

constexpr uint32_t kVersionFlag = 1;
constexpr int kRulePathBeneath = 1;

constexpr uint64_t kWriteFile = 1 << 1;
constexpr uint64_t kReadFile = 1 << 2;
constexpr uint64_t kReadDir = 1 << 3;
constexpr uint64_t kRemoveDir = 1 << 4;
constexpr uint64_t kRemoveFile = 1 << 5;
constexpr uint64_t kMakeDir = 1 << 7;
constexpr uint64_t kMakeReg = 1 << 8;
constexpr uint64_t kAllOfAbi1 = (1 << 13) - 1;
constexpr uint64_t kRefer = 1 << 13;                              // ABI 2
constexpr uint64_t kTruncate = 1 << 14;                           // ABI 3
constexpr uint64_t kIoctlDev = 1 << 15;                           // ABI 5
constexpr uint64_t kScopeAbstractSockets = 1, kScopeSignals = 2;  // ABI 6

constexpr uint64_t kOfFiles = kWriteFile | kReadFile | kTruncate | kIoctlDev;
constexpr uint64_t kRead = kReadFile | kReadDir;
constexpr uint64_t kDevice = kRead | kWriteFile | kIoctlDev | kTruncate;
constexpr uint64_t kWrite =
    kRead | kWriteFile | kTruncate | kRemoveDir | kRemoveFile | kMakeDir | kMakeReg | kRefer;

Error landlock_error(const char* what) {
  const int code = errno;
  const char* why = code == ENOSYS       ? "the kernel has no Landlock (Linux 5.13 has)"
                    : code == EOPNOTSUPP ? "Landlock is switched off (boot with lsm=landlock,...)"
                                         : std::strerror(code);
  return make_error(Code::kUnavailable, fmt::format("{}: {}", what, why));
}

uint64_t handled_by(int abi) {
  uint64_t rights = kAllOfAbi1;
  if (abi >= 2) rights |= kRefer;
  if (abi >= 3) rights |= kTruncate;
  if (abi >= 5) rights |= kIoctlDev;
  return rights;
}

std::string described(int abi) {
  std::string text = fmt::format("landlock ABI {} (files", abi);
  if (abi >= 3) text += ", truncation";
  if (abi >= 5) text += ", device ioctls";
  if (abi >= 6) text += ", signals, abstract sockets";
  return text + ")";
}

Status allow(int ruleset, const std::vector<Path>& paths, uint64_t rights) {
  for (const Path& path : paths) {
    const Fd file(::open(path.c_str(), O_PATH | O_CLOEXEC));
    if (file.get() < 0) continue;  // absent: nothing to allow
    struct stat facts {};
    if (::fstat(file.get(), &facts) != 0) continue;
    PathBeneath rule;
    rule.allowed = S_ISDIR(facts.st_mode) ? rights : rights & kOfFiles;
    rule.parent = file.get();
    if (rule.allowed == 0) continue;
    if (::syscall(__NR_landlock_add_rule, ruleset, kRulePathBeneath, &rule, 0) != 0) {
      return landlock_error(fmt::format("allowing {}", path.string()).c_str());
    }
  }
  return {};
}

}  // namespace

Result<std::string> restrict_files(const JailPolicy& policy) {
  const long abi = ::syscall(__NR_landlock_create_ruleset, nullptr, 0, kVersionFlag);
  if (abi < 1) return landlock_error("landlock");
  const int version = static_cast<int>(abi);
  const uint64_t handled = handled_by(version);
  RulesetAttributes attributes;
  attributes.handled_files = handled;
  if (version >= 6) attributes.scoped = kScopeAbstractSockets | kScopeSignals;
  const size_t bytes = version >= 6 ? 24 : version >= 4 ? 16 : 8;
  const Fd ruleset(
      static_cast<int>(::syscall(__NR_landlock_create_ruleset, &attributes, bytes, 0)));
  if (ruleset.get() < 0) return landlock_error("landlock_create_ruleset");
  WEFT_TRY_STATUS(allow(ruleset.get(), policy.read, kRead & handled));
  WEFT_TRY_STATUS(allow(ruleset.get(), policy.list, kReadDir & handled));
  WEFT_TRY_STATUS(allow(ruleset.get(), policy.devices, kDevice & handled));
  WEFT_TRY_STATUS(allow(ruleset.get(), policy.write, kWrite & handled));
  if (::syscall(__NR_landlock_restrict_self, ruleset.get(), 0) != 0) {
    return landlock_error("landlock_restrict_self");
  }
  return described(version);
}

}  // namespace weft::os
