#include "base/os/file.h"
#include "base/os/fd.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/os/atomic_file.h"

namespace weft::os {
namespace {

Error io_error(const char* what, const Path& path) {
  const int code = errno;
  return make_error(code == ENOENT ? Code::kNotFound : Code::kIo,
                    fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(code)));
}

Path environment_dir(const char* variable, const char* fallback) {
  if (const char* value = std::getenv(variable); value != nullptr && *value != '\0') {
    return Path(value) / "weft";
  }
  const char* home = std::getenv("HOME");
  return Path(home != nullptr ? home : "/tmp") / fallback / "weft";
}

}  // namespace

Result<std::string> read_file(const Path& path, uint64_t max_bytes) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return io_error("open", path);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return io_error("read", path);
  if (S_ISDIR(info.st_mode)) {
    return make_error(Code::kInvalid, fmt::format("cannot read {}: it is a folder", path.string()));
  }
  std::string text;
  text.reserve(static_cast<size_t>(info.st_size));
  char block[65536];
  for (;;) {
    const ssize_t got = ::read(file.get(), block, sizeof block);
    if (got < 0) {
      if (errno == EINTR) continue;
      return io_error("read", path);
    }
    if (got == 0) return text;
    if (text.size() + static_cast<size_t>(got) > max_bytes) {
      return make_error(Code::kTooLarge,
                        fmt::format("{} is larger than {} bytes", path.string(), max_bytes));
    }
    text.append(block, static_cast<size_t>(got));
  }
}

Result<std::string> read_file_from(const Path& path, uint64_t offset, uint64_t max_bytes) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return io_error("open", path);
  std::string text(max_bytes, '\0');
  ssize_t got = 0;
  do {
    got = ::pread(file.get(), text.data(), text.size(), static_cast<off_t>(offset));
  } while (got < 0 && errno == EINTR);
  if (got < 0) return io_error("read", path);
  text.resize(static_cast<size_t>(got));
  return text;
}

Status write_file_atomic(const Path& path, std::span<const std::byte> data, unsigned mode) {
  WEFT_TRY(AtomicFile file, AtomicFile::create(path));
  WEFT_TRY_STATUS(file.write(data));
  return file.commit(mode);
}

Status write_file_atomic(const Path& path, std::string_view data, unsigned mode) {
  return write_file_atomic(path, std::as_bytes(std::span(data.data(), data.size())), mode);
}

Result<Buffer> map_file(const Path& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return io_error("open", path);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return io_error("read", path);
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) return Buffer();
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return io_error("map", path);
  std::shared_ptr<const void> owner(
      data, [size](const void* p) { ::munmap(const_cast<void*>(p), size); });
  return Buffer(std::move(owner), data, size);
}

Status make_directories(const Path& path, unsigned mode) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (code) {
    return make_error(Code::kIo,
                      fmt::format("cannot create folder {}: {}", path.string(), code.message()));
  }
  if (mode != 0755 && ::chmod(path.c_str(), mode) != 0) return io_error("set the mode of", path);
  return {};
}

Result<Path> make_temporary_directory(const std::string& prefix) {
  std::error_code code;
  const Path parent = std::filesystem::temp_directory_path(code);
  std::string path = ((code ? Path("/tmp") : parent) / (prefix + "XXXXXX")).string();
  if (::mkdtemp(path.data()) != nullptr) return Path(path);
  return make_error(
      Code::kIo, fmt::format("cannot make a temporary folder {}: {}", path, std::strerror(errno)),
      "free some space, or set TMPDIR to a folder that can be written");
}

Status remove_all(const Path& path) {
  std::error_code code;
  std::filesystem::remove_all(path, code);
  if (code) {
    return make_error(Code::kIo,
                      fmt::format("cannot remove {}: {}", path.string(), code.message()));
  }
  return {};
}

Path user_config_dir() {
  return environment_dir("XDG_CONFIG_HOME", ".config");
}
Path user_state_dir() {
  return environment_dir("XDG_STATE_HOME", ".local/state");
}

}  // namespace weft::os
