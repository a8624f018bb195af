// .npy files (NumPy enhancement proposal 1): magic, version, a header that is a Python dict
// literal of three known keys, then raw data. The literal is parsed strictly, never evaluated.
#include <fmt/format.h>

#include <array>
#include <cstring>

#include "job/token_file.h"

namespace weft::job {
namespace {

constexpr size_t kMaxHeaderBytes = 1 << 16;
constexpr size_t kMaxDimensions = 32;

Error corrupt(std::string message) {
  return make_error(Code::kCorrupt, std::move(message), "write it with numpy.save");
}

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

class LiteralParser {
 public:
  explicit LiteralParser(std::string_view text) : text_(text) {}

  Result<Header> parse() {
    Header header;
    int seen = 0;
    if (!take('{')) return failed();
    while (!take('}')) {
      std::string key;
      if (!read_text(key) || !take(':')) return failed();
      bool good = false;
      if (key == "descr") good = read_text(header.descr);
      if (key == "fortran_order") good = read_bool(header.fortran_order);
      if (key == "shape") good = read_shape(header.shape);
      if (!good) return failed();
      ++seen;
      if (!take(',') && !peek('}')) return failed();
    }
    skip_space();
    if (seen != 3 || at_ != text_.size()) return failed();
    return header;
  }

 private:
  static Error failed() { return corrupt("the header is not a known NumPy header"); }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool peek(char c) {
    skip_space();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool take(char c) {
    if (!peek(c)) return false;
    ++at_;
    return true;
  }
  bool read_text(std::string& out) {
    const char quote = peek('"') ? '"' : '\'';
    if (!take(quote)) return false;
    const size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) return false;
    out = text_.substr(at_, end - at_);
    at_ = end + 1;
    return true;
  }
  bool read_word(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  bool read_bool(bool& out) {
    out = read_word("True");
    return out || read_word("False");
  }
  bool read_shape(std::vector<int64_t>& out) {
    if (!take('(')) return false;
    while (!take(')')) {
      skip_space();
      int64_t size = 0;
      const size_t begin = at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
        if (__builtin_mul_overflow(size, int64_t{10}, &size) ||
            __builtin_add_overflow(size, int64_t{text_[at_] - '0'}, &size)) {
          return false;
        }
        ++at_;
      }
      if (at_ == begin || out.size() >= kMaxDimensions) return false;
      out.push_back(size);
      if (!take(',') && !peek(')')) return false;
    }
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

Result<DType> npy_dtype(const std::string& descr) {
  struct Known {
    std::string_view code;
    DType dtype;
  };
  static constexpr std::array<Known, 12> kKnown = {{{"u1", DType::kUint8},
                                                    {"i1", DType::kInt8},
                                                    {"b1", DType::kBool},
                                                    {"i2", DType::kInt16},
                                                    {"i4", DType::kInt32},
                                                    {"i8", DType::kInt64},
                                                    {"u2", DType::kUint16},
                                                    {"u4", DType::kUint32},
                                                    {"u8", DType::kUint64},
                                                    {"f2", DType::kFloat16},
                                                    {"f4", DType::kFloat32},
                                                    {"f8", DType::kFloat64}}};
  if (descr.size() == 3) {
    for (const Known& known : kKnown) {
      if (known.code != std::string_view(descr).substr(1)) continue;
      const bool one_byte = dtype_bytes(known.dtype) == 1;
      if (descr[0] == '<' || (one_byte && descr[0] == '|')) return known.dtype;
      if (descr[0] == '>') {
        return make_error(Code::kRefused, fmt::format("dtype {} is big-endian", descr),
                          "convert it: array.astype(array.dtype.newbyteorder('<'))");
      }
    }
  }
  return make_error(Code::kRefused,
                    fmt::format("dtype \"{}\" is not supported", descr.substr(0, 40)),
                    "use bool, int, unsigned int or float16/32/64");
}

Result<NpyArray> parse(const Buffer& file) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  const char* text = reinterpret_cast<const char*>(file.data());
  if (file.size() < 12 || std::string_view(text, kMagic.size()) != kMagic) {
    return corrupt("this is not a .npy file");
  }
  const int major = static_cast<int>(file.data()[6]);
  if (major < 1 || major > 3) return corrupt(fmt::format("version {} is unknown", major));
  const size_t length_bytes = major == 1 ? 2 : 4;
  size_t header_bytes = 0;
  for (size_t i = length_bytes; i-- > 0;) {
    header_bytes = header_bytes << 8 | static_cast<size_t>(file.data()[8 + i]);
  }
  const size_t data_begin = 8 + length_bytes + header_bytes;
  if (header_bytes > kMaxHeaderBytes || data_begin > file.size()) {
    return corrupt(fmt::format("a header of {} bytes does not fit", header_bytes));
  }
  WEFT_TRY(Header header, LiteralParser({text + 8 + length_bytes, header_bytes}).parse());
  NpyArray array;
  WEFT_TRY(array.dtype, npy_dtype(header.descr));
  if (header.fortran_order && header.shape.size() > 1) {
    return make_error(Code::kRefused, "the array is in Fortran order",
                      "save numpy.ascontiguousarray(array)");
  }
  if (header.shape.empty()) {
    return make_error(Code::kRefused, "the array has no dimension, so no rows");
  }
  const auto elements = element_count(header.shape);
  int64_t bytes = 0;
  if (!elements ||
      __builtin_mul_overflow(*elements, static_cast<int64_t>(dtype_bytes(array.dtype)), &bytes) ||
      static_cast<uint64_t>(bytes) != file.size() - data_begin) {
    return corrupt(fmt::format("the data has {} bytes, the shape needs another number",
                               file.size() - data_begin));
  }
  array.sizes = std::move(header.shape);
  array.bytes = Buffer(file.owner(), file.data() + data_begin, static_cast<size_t>(bytes));
  return array;
}

}  // namespace

Result<NpyArray> open_npy(const os::Path& path) {
  WEFT_TRY(const Buffer file, os::map_file(path));
  Result<NpyArray> array = parse(file);
  if (!array.ok()) return std::move(array).error().within(path.string());
  return array;
}

}  // namespace weft::job
