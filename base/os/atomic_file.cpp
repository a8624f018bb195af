#include "base/os/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace weft::os {
namespace {

bool sync_folder(const Path& file) {
  const Path folder = file.has_parent_path() ? file.parent_path() : Path(".");
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno == EACCES;  // writable but not readable: nothing more can be done
  const bool done =
      ::fsync(fd) == 0 || errno == EINVAL;  // EINVAL: the file system has no such call
  const int code = errno;
  ::close(fd);
  errno = code;
  return done;
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const Path& path) {
  std::string temporary = path.string() + ".XXXXXX";
  const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  AtomicFile file(fd, path, std::move(temporary));
  if (fd < 0) return file.failure("create a file beside");
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)) {}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

Error AtomicFile::failure(const char* what) const {
  return make_error(Code::kIo,
                    fmt::format("cannot {} {}: {}", what, path_.string(), std::strerror(errno)));
}

Status AtomicFile::write(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t written = ::write(fd_, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failure("write");
    data = data.subspan(static_cast<size_t>(written));
  }
  return {};
}

Status AtomicFile::commit(unsigned mode) {
  if (::fchmod(fd_, mode) != 0) return failure("set the mode of");
  if (::fsync(fd_) != 0) return failure("sync");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failure("rename to");
  ::close(std::exchange(fd_, -1));
  // The new name survives a power cut only once the folder is on disk as well.
  if (!sync_folder(path_)) return failure("sync the folder of");
  return {};
}

}  // namespace weft::os
