#include "base/os/process_identity.h"

#include <sstream>

#include "base/os/file.h"

namespace weft::os {

// /proc/PID/stat: "pid (name) state ppid ... starttime ..."; the name may hold spaces and
// brackets, so fields are counted from its last ')'. starttime is the 20th after it.
std::string process_identity(pid_t pid) {
  auto text = read_file("/proc/" + std::to_string(pid) + "/stat", 65536);
  if (!text.ok()) return {};
  const size_t close = text->rfind(')');
  if (close == std::string::npos) return {};
  std::istringstream fields(text->substr(close + 1));
  std::string field;
  for (int i = 0; i < 20; ++i) {
    if (!(fields >> field)) return {};
    if (i == 0 && (field == "Z" || field == "X")) return {};
  }
  return field;
}

}  // namespace weft::os
