#include "job/token_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/os/atomic_file.h"
#include "job/json_read.h"

namespace weft::job {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxSidecarBytes = 1 << 16;
constexpr int64_t kMaxVocabulary = int64_t{1} << 32;
constexpr int64_t kUint16Vocabulary = 65536;

os::Path sidecar_of(const os::Path& path) {
  return path.string() + ".json";
}

Result<DType> token_dtype(std::string_view name) {
  if (name == "uint16") return DType::kUint16;
  if (name == "uint32") return DType::kUint32;
  return make_error(Code::kInvalid,
                    fmt::format("tokens are uint16 or uint32, not \"{}\"", name.substr(0, 40)));
}

struct Sidecar {
  std::string dtype;
  int64_t vocabulary = 0, count = -1;
};

Result<Sidecar> read_sidecar(const os::Path& path) {
  WEFT_TRY(const std::string text, os::read_file(path, kMaxSidecarBytes));
  WEFT_TRY(const json value, parse_json(text, path.string()));
  Sidecar sidecar;
  JsonReader reader(value, path.string());
  reader.require("dtype");
  reader.text("dtype", sidecar.dtype);
  reader.integer("vocabulary", sidecar.vocabulary, 1, kMaxVocabulary);
  reader.integer("count", sidecar.count, 0);
  WEFT_TRY_STATUS(reader.status());
  return sidecar;
}

}  // namespace

Result<TokenFile> open_token_file(const os::Path& path, std::string_view dtype) {
  Sidecar sidecar;
  if (!dtype.empty()) {
    sidecar.dtype = dtype;
  } else {
    Result<Sidecar> read = read_sidecar(sidecar_of(path));
    if (!read.ok()) {
      Error error = std::move(read).error();
      error.next = "token files are made by `weft data tokens`; the .json file belongs to them";
      return error;
    }
    sidecar = std::move(*read);
  }
  TokenFile file;
  WEFT_TRY(file.dtype, token_dtype(sidecar.dtype));
  WEFT_TRY(file.bytes, os::map_file(path));
  const size_t unit = dtype_bytes(file.dtype);
  if (file.bytes.size() % unit != 0) {
    return make_error(Code::kCorrupt, fmt::format("{}: {} bytes are no whole number of {} tokens",
                                                  path.string(), file.bytes.size(), sidecar.dtype));
  }
  file.count = static_cast<int64_t>(file.bytes.size() / unit);
  if (sidecar.count >= 0 && sidecar.count != file.count) {
    return make_error(Code::kCorrupt,
                      fmt::format("{} holds {} tokens, its sidecar says {}", path.string(),
                                  file.count, sidecar.count),
                      "make the file again with `weft data tokens`");
  }
  file.vocabulary = sidecar.vocabulary;
  return file;
}

Status write_token_file(const os::Path& path, const std::vector<uint32_t>& tokens,
                        int64_t vocabulary) {
  const bool narrow = vocabulary <= kUint16Vocabulary;
  const size_t unit = narrow ? 2 : 4;
  std::vector<std::byte> bytes(tokens.size() * unit);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= vocabulary) {
      return make_error(Code::kInvalid, fmt::format("token {} is {}, outside the vocabulary of {}",
                                                    i, tokens[i], vocabulary));
    }
    for (size_t b = 0; b < unit; ++b) {
      bytes[i * unit + b] = static_cast<std::byte>(tokens[i] >> (8 * b));  // little-endian
    }
  }
  WEFT_TRY_STATUS(os::write_file_atomic(path, bytes));
  const json sidecar = {{"dtype", narrow ? "uint16" : "uint32"},
                        {"vocabulary", vocabulary},
                        {"count", tokens.size()}};
  return os::write_file_atomic(sidecar_of(path), json_line(sidecar) + "\n");
}

int64_t token_samples(int64_t count, int64_t sequence) {
  if (count <= 0 || sequence <= 0) return 0;
  return (count - 1) / sequence;
}

}  // namespace weft::job
