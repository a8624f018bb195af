// What weft-worker may still do once it reads files of strangers: base/os/jail.h with the paths of
// one assignment or one command. Call before any other thread starts.
#pragma once

#include "base/os/jail.h"
#include "job/worker_spec.h"

namespace weft::executor {

// Reads the files the assignment names, writes its work folder. The folder is made if need be and
// takes the temporary files of libraries.
Status enter_worker_jail(os::JailMode mode, const job::WorkerSpec& spec);

// Reads these files and writes these folders; empty paths are skipped.
Status enter_command_jail(os::JailMode mode, const std::vector<os::Path>& read,
                          const std::vector<os::Path>& write, const std::string& device = "cpu");

}  // namespace weft::executor
