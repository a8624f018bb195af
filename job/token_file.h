// Token files: a flat array of uint16 or uint32 token ids beside a small JSON sidecar
// (<path>.json: dtype, vocabulary, count). And .npy arrays, one row a sample. Read-only mappings.
#pragma once

#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/dtype.h"
#include "base/os/file.h"

namespace weft::job {

struct TokenFile {
  DType dtype = DType::kUint16;
  int64_t count = 0;
  int64_t vocabulary = 0;
  Buffer bytes;
};

// The sidecar may be missing when dtype is given (workers get it from their spec).
Result<TokenFile> open_token_file(const os::Path& path, std::string_view dtype = {});
Status write_token_file(const os::Path& path, const std::vector<uint32_t>& tokens,
                        int64_t vocabulary);

// Samples of a token file for sequences of length n: sample i is tokens [i n, i n + n], its
// `next_tokens` shifted by one; (count - 1) / n samples.
int64_t token_samples(int64_t count, int64_t sequence);

struct NpyArray {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> sizes;  // sizes[0] rows
  Buffer bytes;                // C order
};
Result<NpyArray> open_npy(const os::Path& path);

}  // namespace weft::job
