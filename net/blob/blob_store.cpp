#include "net/blob/blob_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/hash.h"
#include "base/os/locked_file.h"

namespace weft::net {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = size_t{256} << 10;

// Names come from the network: only what is a hash ever becomes part of a path.
Status check_name(const std::string& sha256) {
  if (is_sha256_hex(sha256)) return {};
  return make_error(Code::kInvalid,
                    "a blob is named by 64 hexadecimal digits in lower case, the SHA-256 of its "
                    "content");
}

os::Path partial_path(const os::Path& dir, const std::string& sha256) {
  return dir / "partial" / sha256;
}

Result<std::string> hash_of(const os::LockedFile& file) {
  Sha256 hash;
  std::vector<std::byte> piece(kPieceBytes);
  for (uint64_t offset = 0;;) {
    WEFT_TRY(const size_t n, file.read_at(offset, piece));
    if (n == 0) return hash.finish_hex();
    hash.update(std::span(piece).first(n));
    offset += n;
  }
}

}  // namespace

Result<BlobStore> BlobStore::open(const os::Path& dir) {
  WEFT_TRY_STATUS(os::make_directories(dir / "partial"));
  return BlobStore(dir);
}

os::Path BlobStore::path_of(const std::string& sha256) const {
  return check_name(sha256).ok() ? dir_ / sha256.substr(0, 2) / sha256 : os::Path();
}

bool BlobStore::has(const std::string& sha256) const {
  std::error_code ignored;
  return check_name(sha256).ok() && fs::is_regular_file(path_of(sha256), ignored);
}

Result<uint64_t> BlobStore::size_of(const std::string& sha256) const {
  WEFT_TRY_STATUS(check_name(sha256));
  std::error_code ec;
  const uint64_t size = fs::file_size(path_of(sha256), ec);
  if (ec) return make_error(Code::kNotFound, fmt::format("no blob {} here", sha256));
  return size;
}

std::vector<std::string> BlobStore::list() const {
  std::vector<std::string> out;
  std::error_code ec;
  for (fs::directory_iterator folder(dir_, ec), end; !ec && folder != end; folder.increment(ec)) {
    if (folder->path().filename().string().size() != 2) continue;
    std::error_code inner;
    for (fs::directory_iterator file(folder->path(), inner), last; !inner && file != last;
         file.increment(inner)) {
      const std::string name = file->path().filename().string();
      if (is_sha256_hex(name)) out.push_back(name);
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

Status BlobStore::remove(const std::string& sha256) {
  WEFT_TRY_STATUS(check_name(sha256));
  return os::remove_all(path_of(sha256));
}

namespace {

int64_t age_of(const os::Path& path, std::error_code& ec) {
  const auto written = fs::last_write_time(path, ec);
  if (ec) return 0;
  return std::chrono::duration_cast<std::chrono::milliseconds>(fs::file_time_type::clock::now() -
                                                               written)
      .count();
}

void list_folder(const os::Path& folder, bool complete, std::vector<BlobFile>& out) {
  std::error_code ec;
  for (fs::directory_iterator file(folder, ec), end; !ec && file != end; file.increment(ec)) {
    std::error_code gone;
    if (!file->is_regular_file(gone) || gone) continue;
    BlobFile entry{file->path().filename().string(), file->path(), complete, 0, 0};
    entry.complete = complete && is_sha256_hex(entry.name);  // else an atomic write's leftover
    entry.bytes = file->file_size(gone);
    if (gone) continue;
    entry.age_ms = age_of(file->path(), gone);
    if (!gone) out.push_back(std::move(entry));
  }
}

}  // namespace

std::vector<BlobFile> BlobStore::files() const {
  std::vector<BlobFile> out;
  list_folder(dir_ / "partial", false, out);
  std::error_code ec;
  for (fs::directory_iterator folder(dir_, ec), end; !ec && folder != end; folder.increment(ec)) {
    if (folder->path().filename().string().size() == 2) list_folder(folder->path(), true, out);
  }
  return out;
}

Result<bool> BlobStore::remove_if_older(const BlobFile& file, int64_t least_age_ms) {
  std::error_code ec;
  if (age_of(file.path, ec) < least_age_ms || ec) return false;
  WEFT_TRY_STATUS(os::remove_all(file.path));
  return true;
}

void BlobStore::touch(const std::string& sha256) const {
  std::error_code ignored;
  if (check_name(sha256).ok()) {
    fs::last_write_time(path_of(sha256), fs::file_time_type::clock::now(), ignored);
  }
}

Result<std::string> BlobStore::put(std::span<const std::byte> data) {
  std::string name = sha256_hex(data);
  if (has(name)) return name;
  const os::Path path = path_of(name);
  WEFT_TRY_STATUS(os::make_directories(path.parent_path()));
  WEFT_TRY_STATUS(os::write_file_atomic(path, data));
  return name;
}

uint64_t BlobStore::partial_size(const std::string& sha256) const {
  if (!check_name(sha256).ok()) return 0;
  std::error_code ec;
  const uint64_t size = fs::file_size(partial_path(dir_, sha256), ec);
  return ec ? 0 : size;
}

Status BlobStore::append(const std::string& sha256, uint64_t offset,
                         std::span<const std::byte> data) {
  WEFT_TRY_STATUS(check_name(sha256));
  if (has(sha256)) return make_error(Code::kExists, fmt::format("blob {} is complete", sha256));
  WEFT_TRY(auto file, os::LockedFile::open(partial_path(dir_, sha256), true));
  WEFT_TRY(const uint64_t received, file.size());
  if (offset != received) {
    return make_error(Code::kExists,
                      fmt::format("{} bytes of blob {} are here, a chunk at {} does not continue "
                                  "them",
                                  received, sha256, offset),
                      "go on where the received bytes end");
  }
  return file.append(data);
}

Status BlobStore::finish(const std::string& sha256) {
  WEFT_TRY_STATUS(check_name(sha256));
  auto opened = os::LockedFile::open(partial_path(dir_, sha256), false);
  if (!opened.ok()) {
    if (has(sha256)) return {};  // another writer was first
    return std::move(opened).error().within("blob " + sha256);
  }
  os::LockedFile file = std::move(opened).value();
  WEFT_TRY(const std::string hash, hash_of(file));
  if (hash != sha256) {
    WEFT_TRY_STATUS(file.remove());
    return make_error(
        Code::kCorrupt,
        fmt::format("what arrived as blob {} has the hash {}; it was discarded", sha256, hash),
        "send it again from the start");
  }
  WEFT_TRY_STATUS(os::make_directories(path_of(sha256).parent_path()));
  return file.publish(path_of(sha256));
}

}  // namespace weft::net
