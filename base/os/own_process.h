// What a process does to itself: hardening, its memory, its end.
#pragma once

#include <cstdint>
#include <string>

namespace weft::os {

// No core dumps (they would hold weights and keys), no new privileges for anything executed.
void harden_process();
// A reader that went away is an error of write, not a signal.
void ignore_broken_pipes();
// SIGTERM, SIGINT and SIGHUP are for the parent, which knows when this process must end.
void ignore_stop_signals();
// Where libraries put temporary files. Before any other thread starts.
void set_temporary_folder(const std::string& path);
// Largest resident set so far.
int64_t peak_resident_bytes();
// Ends the process at once: no destructors, no exit handlers, nothing that could hang.
[[noreturn]] void exit_now(int code);

}  // namespace weft::os
