// A file that several processes append to in turn: opened under an exclusive lock which ends with
// the object. The path may have been renamed away meanwhile; open then starts over, so the lock is
// always that of the file the path names. Thread-compatible; errors name the path.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/os/file.h"

namespace weft::os {

class LockedFile {
 public:
  // create: an absent file is made (0644); else it is kNotFound. Never waits: kUnavailable while
  // somebody else holds the lock.
  static Result<LockedFile> open(const Path& path, bool create);
  LockedFile(LockedFile&& other) noexcept;
  LockedFile& operator=(LockedFile&&) = delete;
  ~LockedFile();

  Result<uint64_t> size() const;
  Status append(std::span<const std::byte> data);
  // Reads up to out.size() bytes at offset; 0 at the end.
  Result<size_t> read_at(uint64_t offset, std::span<std::byte> out) const;
  // Syncs the file and gives it its final name, replacing what is there.
  Status publish(const Path& as);
  Status remove();

 private:
  LockedFile(int fd, Path path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  Path path_;
};

}  // namespace weft::os
