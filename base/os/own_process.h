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
// Freed memory stays with the process to be used again, instead of going back to the kernel, which
// clears every page it gives out anew: a tenth of a training step on a CPU (bench/executor). Before
// large allocations.
void keep_freed_memory();
// Largest resident set so far, of this program alone (getrusage also counts what the process was
// before it executed this program).
int64_t peak_resident_bytes();
// Seconds that the calling thread has run on a processor: time in which it was put off does not
// count.
double thread_cpu_seconds();
// Ends the process at once: no destructors, no exit handlers, nothing that could hang.
[[noreturn]] void exit_now(int code);

}  // namespace weft::os
