// Runs a Python script with the project's .venv, to compare with the libraries users have.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/os/file.h"
#include "base/os/process.h"

namespace weft::job {

inline os::Path python() {
  const char* source = std::getenv("WEFT_SOURCE_DIR");
  return os::Path(source != nullptr ? source : ".") / ".venv" / "bin" / "python";
}

inline bool have_python() {
  return std::filesystem::exists(python());
}

// Exit code 0: the script's assertions held.
inline bool run_python(const std::string& script, const std::vector<std::string>& arguments) {
  os::SpawnOptions options;
  options.argv = {python().string(), "-c", script};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.environment = {"TOKENIZERS_PARALLELISM=false"};
  Result<os::Child> child = os::spawn(options);
  return child.ok() && os::wait(child->pid).code == 0;
}

// A new empty folder for one test.
inline os::Path fresh_dir(const std::string& name, const std::string& root) {
  const os::Path path = os::Path(root) / fmt::format("{}_{}", name, ::getpid());
  (void)os::remove_all(path);
  (void)os::make_directories(path);
  return path;
}

}  // namespace weft::job
