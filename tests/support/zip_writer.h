// A minimal zip writer for tests of the archive reader: stored and deflated entries, and the raw
// bytes at hand to be damaged.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace weft::testing {

class ZipWriter {
 public:
  void add(const std::string& name, const std::string& data, bool deflate = false) {
    Entry entry{name, static_cast<uint32_t>(file_.size()), checksum(data),
                0,    static_cast<uint32_t>(data.size()),  static_cast<uint16_t>(deflate ? 8 : 0)};
    const std::string packed = deflate ? deflated(data) : data;
    entry.packed = static_cast<uint32_t>(packed.size());
    put(file_, 0x04034b50, 4);
    common(file_, entry);
    put(file_, 0, 2);  // extra
    file_ += name + packed;
    entries_.push_back(entry);
  }

  // Directory entries can be changed before finish().
  struct Entry {
    std::string name;
    uint32_t local, crc, packed, size;
    uint16_t method;
  };
  std::vector<Entry>& entries() { return entries_; }

  std::string finish() const {
    std::string out = file_;
    const auto start = static_cast<uint32_t>(out.size());
    for (const Entry& entry : entries_) {
      put(out, 0x02014b50, 4);
      put(out, 20, 2);
      common(out, entry);
      put(out, 0, 2);  // extra
      put(out, 0, 2);  // comment
      put(out, 0, 2);  // disk
      put(out, 0, 2);
      put(out, 0, 4);
      put(out, entry.local, 4);
      out += entry.name;
    }
    const auto bytes = static_cast<uint32_t>(out.size()) - start;
    put(out, 0x06054b50, 4);
    put(out, 0, 4);
    put(out, entries_.size(), 2);
    put(out, entries_.size(), 2);
    put(out, bytes, 4);
    put(out, start, 4);
    put(out, 0, 2);
    return out;
  }

  static std::string write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  static void put(std::string& out, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  }
  // From "version needed" to "name length": local and central headers agree here.
  static void common(std::string& out, const Entry& entry) {
    put(out, 20, 2);
    put(out, 0, 2);
    put(out, entry.method, 2);
    put(out, 0, 4);  // time, date
    put(out, entry.crc, 4);
    put(out, entry.packed, 4);
    put(out, entry.size, 4);
    put(out, entry.name.size(), 2);
  }
  static uint32_t checksum(const std::string& data) {
    return static_cast<uint32_t>(
        crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())));
  }
  static std::string deflated(const std::string& data) {
    z_stream stream{};
    deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
    std::string out(data.size() + 100, '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
    stream.avail_in = static_cast<uInt>(data.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    deflate(&stream, Z_FINISH);
    out.resize(out.size() - stream.avail_out);
    deflateEnd(&stream);
    return out;
  }

  std::string file_;
  std::vector<Entry> entries_;
};

}  // namespace weft::testing
