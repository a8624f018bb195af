// Tells a process from a later one that got the same pid.
#pragma once

#include <sys/types.h>

#include <string>

namespace weft::os {

// Boot-relative start time of a process as the kernel counts it; empty when it does not run.
std::string process_identity(pid_t pid);

}  // namespace weft::os
