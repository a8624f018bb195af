#include "base/os/locked_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace weft::os {
namespace {

Error failed(const char* what, const Path& path) {
  const Code code = errno == ENOENT ? Code::kNotFound : Code::kIo;
  return make_error(code,
                    fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(errno)));
}

}  // namespace

Result<LockedFile> LockedFile::open(const Path& path, bool create) {
  for (;;) {
    const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0);
    const int fd = ::open(path.c_str(), flags, 0644);
    if (fd < 0) return failed("open", path);
    LockedFile file(fd, path);
    while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        return make_error(
            Code::kUnavailable,
            fmt::format("{} is being written or verified by another transfer", path.string()),
            "try again a little later");
      }
      if (errno != EINTR) return failed("lock", path);
    }
    struct stat ours {
    }, named{};
    if (::fstat(fd, &ours) != 0) return failed("read", path);
    if (::stat(path.c_str(), &named) == 0 && named.st_ino == ours.st_ino &&
        named.st_dev == ours.st_dev) {
      return file;
    }
  }
}

LockedFile::LockedFile(LockedFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

LockedFile::~LockedFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<uint64_t> LockedFile::size() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) return failed("read", path_);
  return static_cast<uint64_t>(info.st_size);
}

Status LockedFile::append(std::span<const std::byte> data) {
  WEFT_TRY(const uint64_t start, size());
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t n = ::pwrite(fd_, data.data() + done, data.size() - done, off_t(start + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      Error error = failed("write", path_);
      // A torn tail would be taken for received bytes. If even this fails the hash will not hold.
      if (::ftruncate(fd_, off_t(start)) != 0) error.message += ", nor cut it back";
      return error;
    }
    done += size_t(n);
  }
  return {};
}

Result<size_t> LockedFile::read_at(uint64_t offset, std::span<std::byte> out) const {
  for (;;) {
    const ssize_t n = ::pread(fd_, out.data(), out.size(), off_t(offset));
    if (n >= 0) return size_t(n);
    if (errno != EINTR) return failed("read", path_);
  }
}

Status LockedFile::publish(const Path& as) {
  if (::fsync(fd_) != 0) return failed("sync", path_);
  if (::rename(path_.c_str(), as.c_str()) != 0) return failed("rename", path_);
  return {};
}

Status LockedFile::remove() {
  if (::unlink(path_.c_str()) != 0) return failed("remove", path_);
  return {};
}

}  // namespace weft::os
