#include "base/os/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace weft::os {

Result<FolderLock> FolderLock::take(const Path& dir) {
  const std::string path = (dir / "lock").string();
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return make_error(Code::kIo, fmt::format("cannot open {}: {}", path, std::strerror(errno)),
                      "check the folder and its owner");
  }
  FolderLock lock(fd);
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) {
      return make_error(Code::kExists,
                        fmt::format("another program already works in {}", dir.string()));
    }
    return make_error(Code::kIo, fmt::format("cannot lock {}: {}", path, std::strerror(errno)));
  }
  return lock;
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

}  // namespace weft::os
