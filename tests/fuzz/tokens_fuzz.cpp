// Token files: the sidecar, up to the first zero byte, and the tokens behind it.
#include "job/token_file.h"

#include "tests/fuzz/fuzz.h"

std::vector<std::string> weft::fuzz::seeds() {
  return {std::string(R"({"dtype":"uint16","vocabulary":64,"count":2})") + std::string(5, '\0'),
          std::string(R"({"dtype":"uint32","vocabulary":70000,"count":1})") + std::string(5, '\0'),
          std::string(R"({"dtype":"uint16"})") + '\0' + "odd"};
}

namespace {

// A token file and its sidecar in memory under names in a folder: to write files of a disk for each
// input takes longer than to read them.
struct Files {
  weft::fuzz::TemporaryFolder folder{"weft-fuzz-tokens"};
  weft::fuzz::MemoryFile tokens, sidecar;
  const weft::os::Path path = folder.path() / "t";
  Files() {
    std::filesystem::create_symlink(tokens.path(), path);
    std::filesystem::create_symlink(sidecar.path(), path.string() + ".json");
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  static Files files;
  const std::string_view input = fuzz::text_of(data, size);
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string_view tokens = input.substr(std::min(end + 1, input.size()));
  files.sidecar.assign(input.substr(0, end));
  files.tokens.assign(tokens);
  for (const char* dtype : {"", "uint16", "uint32"}) {
    const auto file = job::open_token_file(files.path, dtype);
    if (!file.ok()) continue;
    WEFT_CHECK(file->bytes.size() == tokens.size());
    WEFT_CHECK(static_cast<size_t>(file->count) * dtype_bytes(file->dtype) == tokens.size());
    WEFT_CHECK(job::token_samples(file->count, 3) <= file->count);
  }
  return 0;
}
