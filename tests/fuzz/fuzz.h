// What the fuzz targets of this folder share. A target is one file NAME_fuzz.cpp that defines both
// functions below. libFuzzer drives it where WEFT_FUZZ is on (clang); driver_main.cpp drives it in
// the fast tests, with the target's seeds, the committed corpus and seeded mutations of both.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/os/file.h"

// An input that breaks the program is an abort (WEFT_CHECK) or an error of a sanitizer.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace weft::fuzz {

// Well-formed inputs of the target's format, made by code.
std::vector<std::string> seeds();

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A folder that ends with the program.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& prefix)
      : path_(*os::make_temporary_directory(prefix)) {}
  ~TemporaryFolder() { (void)os::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const os::Path& path() const { return path_; }

 private:
  os::Path path_;
};

// A file in memory with these bytes, for readers that take a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes = {}) : fd_(::memfd_create("weft-fuzz", MFD_CLOEXEC)) {
    WEFT_CHECK(fd_ >= 0);
    assign(bytes);
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  // Nobody may have the old bytes mapped.
  void assign(std::string_view bytes) {
    WEFT_CHECK(::ftruncate(fd_, 0) == 0);
    WEFT_CHECK(::pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }
  os::Path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace weft::fuzz
