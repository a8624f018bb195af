// A file written piece by piece under a temporary name; commit() syncs it, renames it and syncs the
// folder, so that a reader sees the old or the new file, whole, and the new one survives a power
// cut. Destroyed without commit: nothing remains.
#pragma once

#include <span>

#include "base/os/file.h"

namespace weft::os {

class AtomicFile {
 public:
  static Result<AtomicFile> create(const Path& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  Status write(std::span<const std::byte> data);
  Status commit(unsigned mode = 0644);

 private:
  AtomicFile(int fd, Path path, std::string temporary)
      : fd_(fd), path_(std::move(path)), temporary_(std::move(temporary)) {}
  Error failure(const char* what) const;

  int fd_ = -1;
  Path path_;
  std::string temporary_;
};

}  // namespace weft::os
