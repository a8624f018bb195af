// Jail: what a process gives up before it reads a stranger's files. No new privileges; files
// outside a list cannot be opened (Landlock); calls no computation needs fail with EPERM (seccomp):
// other programs, other processes, mounts, modules, keys, tracing; no core dumps, few descriptors;
// first in line when the machine runs out of memory.
//
// Enter it from the main thread before other threads start: Landlock binds the calling thread and
// those it starts later. It cannot be left, and nothing here fails: what the kernel does not offer
// is told in the report. Descriptors that are open already stay usable.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/file.h"

namespace weft::os {

enum class JailMode { kAuto, kRequired, kOff };
// "auto", "required" or "off".
std::optional<JailMode> jail_mode_from_name(std::string_view name);

// Absent paths are skipped; a folder stands for all below it. Nothing can be executed.
struct JailPolicy {
  std::vector<Path> read;     // files and folders
  std::vector<Path> list;     // folders whose names may be read, not the files
  std::vector<Path> devices;  // read, write, ioctl
  std::vector<Path> write;    // folders: read, write, create, rename, remove
  uint64_t max_open_files = 16384;
  // Of memory the process allocates (RLIMIT_DATA); 0: as before. An allocation beyond it fails at
  // once, where the kernel would otherwise promise memory that is not there. Not applied to a
  // process that has reserved more than that before.
  uint64_t max_data_bytes = 0;
};

// What libraries of the system, of this program and of its GPU open: no file of a user beside the
// folders that loaded libraries lie in.
JailPolicy system_jail_policy();

struct JailReport {
  std::vector<std::string> applied;
  std::vector<std::string> not_applied;  // with the reason
  bool complete() const { return not_applied.empty(); }
  std::string text() const;  // one line for the log
};

JailReport enter_jail(const JailPolicy& policy);

// As the mode says: kOff does nothing. kAuto logs what was applied and what was not. kRequired is
// the same, but an incomplete jail is an error of code kDenied; the process should end then.
Status enter_jail(JailMode mode, const JailPolicy& policy);

}  // namespace weft::os
