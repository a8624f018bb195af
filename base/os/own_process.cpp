#include "base/os/own_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <initializer_list>

namespace weft::os {

void harden_process() {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

void ignore_broken_pipes() {
  ::signal(SIGPIPE, SIG_IGN);
}

void ignore_stop_signals() {
  for (int number : {SIGTERM, SIGINT, SIGHUP}) ::signal(number, SIG_IGN);
}

void set_temporary_folder(const std::string& path) {
  ::setenv("TMPDIR", path.c_str(), 1);
}

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

void exit_now(int code) {
  _exit(code);
}

}  // namespace weft::os
