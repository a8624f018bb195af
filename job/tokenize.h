// `weft data tokens`: a text becomes a training and an evaluation token file with their sidecars.
#pragma once

#include <cstdint>
#include <string>

#include "base/os/file.h"
#include "base/result.h"

namespace weft::job {

struct TokenizeReport {
  std::string train_path;  // PREFIX.train.bin
  std::string eval_path;   // PREFIX.eval.bin; empty without an evaluation part
  std::string dtype;       // "uint16" or "uint32"
  int64_t vocabulary = 0;
  int64_t train_tokens = 0;
  int64_t eval_tokens = 0;
  int64_t text_bytes = 0;
};

// tokenizer: path of a tokenizer.json, or empty: each byte is a token (vocabulary 256). The last
// eval_fraction of the tokens, from 0 to below 1, becomes the evaluation file.
Result<TokenizeReport> tokenize_file(const os::Path& input, const std::string& output_prefix,
                                     const std::string& tokenizer, double eval_fraction = 0.05);

}  // namespace weft::job
