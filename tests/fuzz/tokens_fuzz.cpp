// Token files: the sidecar, up to the first zero byte, and the tokens behind it.
#include "job/token_file.h"

#include <fstream>

#include "tests/fuzz/fuzz.h"

std::vector<std::string> weft::fuzz::seeds() {
  return {std::string(R"({"dtype":"uint16","vocabulary":64,"count":2})") + std::string(5, '\0'),
          std::string(R"({"dtype":"uint32","vocabulary":70000,"count":1})") + std::string(5, '\0'),
          std::string(R"({"dtype":"uint16"})") + '\0' + "odd"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  static const fuzz::TemporaryFolder kTemporary("weft-fuzz-tokens");
  const os::Path& folder = kTemporary.path();
  const std::string_view input = fuzz::text_of(data, size);
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string_view tokens = input.substr(std::min(end + 1, input.size()));
  // Not by os::write_file_atomic, which waits for the disk.
  std::ofstream(folder / "t.json", std::ios::binary) << input.substr(0, end);
  std::ofstream(folder / "t", std::ios::binary) << tokens;
  for (const char* dtype : {"", "uint16", "uint32"}) {
    const auto file = job::open_token_file(folder / "t", dtype);
    if (!file.ok()) continue;
    WEFT_CHECK(file->bytes.size() == tokens.size());
    WEFT_CHECK(static_cast<size_t>(file->count) * dtype_bytes(file->dtype) == tokens.size());
    WEFT_CHECK(job::token_samples(file->count, 3) <= file->count);
  }
  return 0;
}
