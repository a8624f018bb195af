// A lock on a folder, held as long as a program works in it; the kernel releases it whatever
// happens to the process. Between processes and between objects of one process.
#pragma once

#include "base/os/file.h"

namespace weft::os {

class FolderLock {
 public:
  // kExists: somebody holds it, named by process id and program where that can be told. The lock
  // lies in the file <dir>/lock, which stays and holds the id of the last process that took it.
  static Result<FolderLock> take(const Path& dir);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace weft::os
