#include "base/os/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace weft::os {

namespace {

constexpr uint64_t kMaxTextBytes = 64;

// "process 17, weftd" as the holder wrote it; empty where it cannot be told (another pid
// namespace).
std::string holder_text(const std::string& lock_path) {
  const auto text = read_file(lock_path, kMaxTextBytes);
  if (!text.ok()) return {};
  const long pid = std::strtol(text->c_str(), nullptr, 10);
  auto name = read_file(fmt::format("/proc/{}/comm", pid), kMaxTextBytes);
  if (pid <= 0 || !name.ok()) return {};
  while (name->ends_with('\n')) name->pop_back();
  return fmt::format(" (process {}, {})", pid, *name);
}

}  // namespace

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
      return make_error(
          Code::kExists,
          fmt::format("another program{} already works in {}", holder_text(path), dir.string()),
          "stop it first, or choose another folder");
    }
    return make_error(Code::kIo, fmt::format("cannot lock {}: {}", path, std::strerror(errno)));
  }
  // Only for the message to others: a disk too full for it is no reason to fail.
  const std::string pid = fmt::format("{}\n", ::getpid());
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, pid.data(), pid.size(), 0) < 0) errno = 0;
  return lock;
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

}  // namespace weft::os
