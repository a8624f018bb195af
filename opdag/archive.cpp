// A zip reader for archives from strangers: every offset and size is checked against the file
// before it is used, entries may not overlap, and names may not leave the archive. The layout is
// that of PKWARE's APPNOTE 6.3: local headers and data, then the central directory, then its end.
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <stdexcept>

#include "base/os/file.h"
#include "opdag/import.h"

namespace weft::opdag {
namespace {

constexpr uint32_t kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint32_t kCentralSignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr uint64_t kEndBytes = 22, kLocator64Bytes = 20, kEnd64Bytes = 56;
constexpr uint64_t kCentralBytes = 46, kLocalBytes = 30, kMaxCommentBytes = 65535;
constexpr uint64_t kMaxEntries = 1 << 20;
constexpr uint64_t kMaxInflatedBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxInflateRatio = 1100;  // deflate cannot exceed 1032
constexpr uint16_t kStored = 0, kDeflated = 8, kEncrypted = 1, kZip64Extra = 1;

struct Entry {
  uint64_t data = 0;  // offset of the bytes
  uint64_t packed = 0, size = 0;
  uint32_t crc = 0;
  uint16_t method = 0;
};

Error corrupt(std::string message) {
  return make_error(Code::kCorrupt, "archive: " + std::move(message),
                    "save the model again with torch.export.save");
}

// Little-endian reads inside [0, size); out of bounds gives zero and sets bad.
class Reader {
 public:
  Reader(const std::byte* data, uint64_t size) : data_(data), size_(size) {}
  bool holds(uint64_t offset, uint64_t bytes) const {
    return offset <= size_ && bytes <= size_ - offset;
  }
  uint64_t number(uint64_t offset, unsigned bytes) const {
    uint64_t value = 0;
    if (!holds(offset, bytes)) return 0;
    for (unsigned i = 0; i < bytes; ++i) {
      value |= static_cast<uint64_t>(std::to_integer<uint8_t>(data_[offset + i])) << (8 * i);
    }
    return value;
  }
  uint16_t u16(uint64_t at) const { return static_cast<uint16_t>(number(at, 2)); }
  uint32_t u32(uint64_t at) const { return static_cast<uint32_t>(number(at, 4)); }
  uint64_t u64(uint64_t at) const { return number(at, 8); }
  std::string text(uint64_t at, uint64_t bytes) const {
    return holds(at, bytes) ? std::string(reinterpret_cast<const char*>(data_ + at), bytes)
                            : std::string();
  }
  uint64_t size() const { return size_; }

 private:
  const std::byte* data_;
  uint64_t size_;
};

struct Directory {
  uint64_t offset = 0, bytes = 0, entries = 0;
};

Result<Directory> find_directory(const Reader& file) {
  if (file.size() < kEndBytes) {
    return corrupt(fmt::format("{} bytes are too few for a zip file", file.size()));
  }
  const uint64_t last = file.size() - kEndBytes;
  const uint64_t first = last > kMaxCommentBytes ? last - kMaxCommentBytes : 0;
  uint64_t end = last + 1;
  for (uint64_t at = last + 1; at-- > first;) {
    if (file.u32(at) == kEndSignature && at + kEndBytes + file.u16(at + 20) == file.size()) {
      end = at;
      break;
    }
  }
  if (end > last) return corrupt("no zip directory at its end: truncated, or no .pt2 file");
  Directory directory{file.u32(end + 16), file.u32(end + 12), file.u16(end + 10)};
  if (file.u16(end + 4) != 0 || file.u16(end + 6) != 0) {
    return corrupt("split over several disks");
  }
  if (directory.offset == 0xffffffffu || directory.bytes == 0xffffffffu ||
      directory.entries == 0xffffu) {
    if (end < kLocator64Bytes || file.u32(end - kLocator64Bytes) != kLocator64Signature) {
      return corrupt("the 64-bit directory locator is missing");
    }
    const uint64_t at = file.u64(end - kLocator64Bytes + 8);
    if (!file.holds(at, kEnd64Bytes) || file.u32(at) != kEnd64Signature) {
      return corrupt("the 64-bit directory end is outside the file");
    }
    directory = {file.u64(at + 48), file.u64(at + 40), file.u64(at + 32)};
  }
  if (!file.holds(directory.offset, directory.bytes) || directory.offset + directory.bytes > end) {
    return corrupt(fmt::format("its directory ({} bytes at {}) is outside the file of {} bytes",
                               directory.bytes, directory.offset, file.size()));
  }
  if (directory.entries > kMaxEntries || directory.entries * kCentralBytes > directory.bytes) {
    return corrupt(fmt::format("impossible number of entries: {}", directory.entries));
  }
  return directory;
}

Status check_name(const std::string& name) {
  bool bad = name.empty() || name.size() > 1024 || name.front() == '/' || name.size() < 1;
  for (char c : name) bad = bad || static_cast<unsigned char>(c) < 0x20 || c == '\\' || c == ':';
  bad = bad || ("/" + name + "/").find("/../") != std::string::npos ||
        ("/" + name + "/").find("/./") != std::string::npos || name.find("//") != std::string::npos;
  if (bad) return corrupt(fmt::format("entry name '{}' leaves the archive", name));
  return {};
}

// Replaces the 32-bit fields that say "see the zip64 extra field".
Status read_zip64(const Reader& file, uint64_t extra, uint64_t bytes, const std::string& name,
                  Entry& entry, uint64_t& local) {
  if (entry.size != 0xffffffffu && entry.packed != 0xffffffffu && local != 0xffffffffu) return {};
  const uint64_t end = extra + bytes;
  while (extra + 4 <= end) {
    const uint64_t length = file.u16(extra + 2);
    if (length > end - extra - 4) break;
    if (file.u16(extra) == kZip64Extra) {
      uint64_t at = extra + 4, left = length;
      for (uint64_t* field : {&entry.size, &entry.packed, &local}) {
        if (*field != 0xffffffffu) continue;
        if (left < 8) return corrupt(fmt::format("'{}': short zip64 field", name));
        *field = file.u64(at);
        at += 8;
        left -= 8;
      }
      return {};
    }
    extra += 4 + length;
  }
  return corrupt(fmt::format("'{}': zip64 field missing", name));
}

// Reads the directory record at `at`, moves `at` past it.
Result<std::pair<std::string, Entry>> read_entry(const Reader& file, const Directory& directory,
                                                 uint64_t& at, uint64_t& local) {
  const uint64_t end = directory.offset + directory.bytes;
  if (at + kCentralBytes > end || file.u32(at) != kCentralSignature) {
    return corrupt(fmt::format("broken directory record at {}", at));
  }
  const uint64_t name_bytes = file.u16(at + 28), extra_bytes = file.u16(at + 30);
  const uint64_t record = kCentralBytes + name_bytes + extra_bytes + file.u16(at + 32);
  if (record > end - at) return corrupt(fmt::format("directory record at {} is cut off", at));
  std::string name = file.text(at + kCentralBytes, name_bytes);
  WEFT_TRY_STATUS(check_name(name));
  Entry entry;
  entry.method = file.u16(at + 10);
  entry.crc = file.u32(at + 16);
  entry.packed = file.u32(at + 20);
  entry.size = file.u32(at + 24);
  local = file.u32(at + 42);
  WEFT_TRY_STATUS(
      read_zip64(file, at + kCentralBytes + name_bytes, extra_bytes, name, entry, local));
  if (file.u16(at + 8) & kEncrypted) return corrupt(fmt::format("'{}' is encrypted", name));
  if (entry.method != kStored && entry.method != kDeflated) {
    return corrupt(fmt::format("'{}' uses compression method {}", name, entry.method));
  }
  if (!file.holds(local, kLocalBytes) || file.u32(local) != kLocalSignature) {
    return corrupt(fmt::format("'{}': no local header at {}", name, local));
  }
  const uint64_t header = kLocalBytes + file.u16(local + 26) + file.u16(local + 28);
  if (file.text(local + kLocalBytes, file.u16(local + 26)) != name) {
    return corrupt(fmt::format("'{}' has another name in its local header", name));
  }
  entry.data = local + header;
  if (!file.holds(entry.data, entry.packed) || entry.data + entry.packed > directory.offset) {
    return corrupt(fmt::format("'{}' ({} bytes) reaches beyond the data of the file ({} bytes)",
                               name, entry.packed, file.size()));
  }
  if (entry.method == kStored && entry.packed != entry.size) {
    return corrupt(fmt::format("'{}' is stored but its sizes {} and {} differ", name, entry.packed,
                               entry.size));
  }
  if (entry.method == kDeflated &&
      (entry.size > kMaxInflatedBytes || entry.size / kMaxInflateRatio > entry.packed)) {
    return corrupt(
        fmt::format("'{}' claims to inflate from {} to {} bytes; at most {} are accepted", name,
                    entry.packed, entry.size, kMaxInflatedBytes));
  }
  at += record;
  return std::pair{std::move(name), entry};
}

uint32_t crc_of(const std::byte* data, uint64_t size) {
  return static_cast<uint32_t>(
      crc32_z(crc32_z(0, nullptr, 0), reinterpret_cast<const Bytef*>(data), size));
}

// Doubles `out`, at most to `limit` bytes; false when memory is short.
bool grow(std::vector<std::byte>& out, uint64_t limit) {
  constexpr uint64_t kFirst = uint64_t{1} << 16;
  try {
    const uint64_t size = std::min(limit, std::max(kFirst, uint64_t{out.size()} * 2));
    out.reserve(size);  // resize alone may take more than it needs
    out.resize(size);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const std::length_error&) {
    return false;
  }
}

// The output grows with what arrives: the claimed size bounds it, it never reserves by it.
Result<Buffer> inflate_entry(const std::string& name, const std::byte* data, const Entry& entry) {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) {
    return make_error(Code::kInternal, "archive: zlib cannot start");
  }
  constexpr uint64_t kPiece = uint64_t{1} << 30;
  std::vector<std::byte> out;
  uint64_t in = 0, made = 0;
  int code = Z_OK;
  std::byte spare{};  // zlib wants somewhere to point at when nothing is left
  while (code == Z_OK) {
    if (made == out.size() && made < entry.size && !grow(out, entry.size)) {
      inflateEnd(&stream);
      return make_error(
          Code::kUnavailable,
          fmt::format("archive: no memory to inflate '{}' to {} bytes", name, entry.size),
          "free memory, or read a smaller model");
    }
    const auto in_now = static_cast<uInt>(std::min(kPiece, entry.packed - in));
    const auto out_now = static_cast<uInt>(std::min<uint64_t>(kPiece, out.size() - made));
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(data + in));
    stream.avail_in = in_now;
    stream.next_out = reinterpret_cast<Bytef*>(out_now == 0 ? &spare : out.data() + made);
    stream.avail_out = out_now;
    code = inflate(&stream, Z_NO_FLUSH);
    in += in_now - stream.avail_in;
    made += out_now - stream.avail_out;
    if (code == Z_OK && in_now == stream.avail_in && out_now == stream.avail_out) break;
  }
  inflateEnd(&stream);
  if (code != Z_STREAM_END || made != entry.size || in != entry.packed) {
    return corrupt(
        fmt::format("'{}' does not inflate to the {} bytes it claims", name, entry.size));
  }
  return Buffer(std::move(out));
}

}  // namespace

struct Archive::State {
  Buffer file;
  std::map<std::string, Entry, std::less<>> entries;
  std::string top;  // the one top folder, "" when there is none

  const std::pair<const std::string, Entry>* find(std::string_view suffix) const {
    const std::string full = top.empty() ? std::string(suffix) : fmt::format("{}/{}", top, suffix);
    const auto found = entries.find(full);
    return found == entries.end() ? nullptr : &*found;
  }
};

Result<Archive> Archive::open(const std::filesystem::path& path) {
  auto state = std::make_shared<State>();
  WEFT_TRY(state->file, os::map_file(path));
  const Reader file(state->file.data(), state->file.size());
  auto directory = find_directory(file);
  if (!directory.ok()) return std::move(directory).error().within(path.string());
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  uint64_t at = directory->offset;
  for (uint64_t i = 0; i < directory->entries; ++i) {
    uint64_t local = 0;
    auto entry = read_entry(file, *directory, at, local);
    if (!entry.ok()) return std::move(entry).error().within(path.string());
    ranges.emplace_back(local, entry->second.data + entry->second.packed);
    const std::string name = entry->first;
    if (!state->entries.insert(std::move(*entry)).second) {
      return corrupt(fmt::format("two entries are called '{}'", name)).within(path.string());
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) {
      return corrupt(fmt::format("entries overlap at byte {}", ranges[i].first))
          .within(path.string());
    }
  }
  if (!state->entries.empty()) {
    const std::string& first = state->entries.begin()->first;
    const std::string top = first.substr(0, first.find('/'));
    const bool shared =
        std::all_of(state->entries.begin(), state->entries.end(),
                    [&](const auto& entry) { return entry.first.starts_with(top + "/"); });
    if (shared) state->top = top;
  }
  return Archive(std::move(state));
}

Result<Buffer> Archive::entry(std::string_view suffix) const {
  const auto* found = state_->find(suffix);
  if (found == nullptr) {
    return make_error(Code::kNotFound, fmt::format("the archive has no entry '{}'", suffix),
                      "save the model with torch.export.save of torch 2.9 to 2.15");
  }
  const auto& [name, entry] = *found;
  const std::byte* data = state_->file.data() + entry.data;
  Buffer bytes(state_->file.owner(), data, entry.size);
  if (entry.method == kDeflated) {
    WEFT_TRY(bytes, inflate_entry(name, data, entry));
  }
  if (crc_of(bytes.data(), bytes.size()) != entry.crc) {
    return corrupt(fmt::format("'{}' does not match its checksum", name));
  }
  return bytes;
}

bool Archive::has(std::string_view suffix) const {
  return state_->find(suffix) != nullptr;
}

std::optional<uint64_t> Archive::size_of(std::string_view suffix) const {
  const auto* found = state_->find(suffix);
  return found == nullptr ? std::nullopt : std::optional(found->second.size);
}

std::vector<std::string> Archive::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : state_->entries) names.push_back(name);
  return names;
}

}  // namespace weft::opdag
