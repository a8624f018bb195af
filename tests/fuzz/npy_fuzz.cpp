// .npy arrays: header literal, shape and data.
#include "job/token_file.h"
#include "tests/fuzz/fuzz.h"

std::vector<std::string> weft::fuzz::seeds() {
  const auto file = [](char major, std::string header, size_t data) {
    header += '\n';
    std::string bytes = "\x93NUMPY";
    bytes += {major, '\0', static_cast<char>(header.size()), static_cast<char>(header.size() >> 8)};
    if (major > 1) bytes += std::string(2, '\0');
    return bytes + header + std::string(data, 'd');
  };
  return {file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", 24),
          file(1, "{'descr': '|u1', 'fortran_order': True, 'shape': (5,), }", 5),
          file(2, "{'descr': '<i8', 'fortran_order': False, 'shape': (0, 4), }", 0),
          file(3, "{\"descr\": '>f8', 'fortran_order': False, 'shape': (1,)}", 8)};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const fuzz::MemoryFile file(fuzz::text_of(data, size));
  const auto array = job::open_npy(file.path());
  if (!array.ok()) return 0;
  const auto elements = element_count(array->sizes);
  WEFT_CHECK(elements.has_value() && array->bytes.size() <= size);
  WEFT_CHECK(array->bytes.size() == static_cast<size_t>(*elements) * dtype_bytes(array->dtype));
  size_t total = 0;
  for (const std::byte b : array->bytes.bytes()) total += std::to_integer<size_t>(b);
  WEFT_CHECK(total <= size * 255);
  return 0;
}
