// safetensors files without torch: an 8-byte header length, a JSON header, raw little-endian data.
// Reading maps the file and checks every offset; hostile headers are refused, bounded in size.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/dtype.h"
#include "base/os/file.h"

namespace weft::job {

struct TensorView {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> sizes;
  Buffer bytes;  // contiguous
};

struct Safetensors {
  std::map<std::string, TensorView> tensors;
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

Result<Safetensors> read_safetensors(const os::Path& path);
// Streams to a temporary file, then renames.
Status write_safetensors(const os::Path& path, const Safetensors& content);

}  // namespace weft::job
