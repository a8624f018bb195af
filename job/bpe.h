// Byte-level BPE, as GPT-2 and its descendants use it, read from a Hugging Face tokenizer.json and
// run natively. Equal to `tokenizers` with add_special_tokens=False for what it accepts; anything
// else (another model, a normalizer) is refused by name. Not thread-safe: encode keeps a cache.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/file.h"
#include "base/result.h"

namespace weft::job {

class ByteLevelBpe {
 public:
  static Result<ByteLevelBpe> load(const os::Path& path);
  static Result<ByteLevelBpe> parse(std::string_view tokenizer_json);
  ByteLevelBpe(ByteLevelBpe&&) noexcept;
  ByteLevelBpe& operator=(ByteLevelBpe&&) noexcept;
  ~ByteLevelBpe();

  // text: UTF-8, else kInvalid.
  Result<std::vector<uint32_t>> encode(std::string_view text);
  int64_t vocabulary() const;  // largest id + 1, added tokens included

 private:
  struct State;
  explicit ByteLevelBpe(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace weft::job
