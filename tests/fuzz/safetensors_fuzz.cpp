// safetensors files. What is read lies inside the file and is written back as itself.
#include "job/safetensors.h"

#include "tests/fuzz/fuzz.h"

std::vector<std::string> weft::fuzz::seeds() {
  const auto file = [](const std::string& header, size_t data) {
    std::string bytes(8, '\0');
    for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
    return bytes + header + std::string(data, 'd');
  };
  return {file(R"({"__metadata__":{"job":"j"},)"
               R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
               R"("b":{"dtype":"I64","shape":[],"data_offsets":[16,24]}})",
               24),
          file(R"({"e":{"dtype":"BF16","shape":[0,7],"data_offsets":[0,0]}})", 0), file("{}", 0)};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const fuzz::MemoryFile file(fuzz::text_of(data, size));
  const auto content = job::read_safetensors(file.path());
  if (!content.ok()) return 0;
  size_t total = 0;
  for (const auto& [name, view] : content->tensors) {
    const auto elements = element_count(view.sizes);
    WEFT_CHECK(elements.has_value());
    WEFT_CHECK(view.bytes.size() == static_cast<size_t>(*elements) * dtype_bytes(view.dtype));
    for (const std::byte b : view.bytes.bytes()) total += std::to_integer<size_t>(b) + 1;
  }
  WEFT_CHECK(total <= size * 256);
  return 0;
}
