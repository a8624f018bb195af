// Columns of a token file: `tokens` and `next_tokens` (the same shifted by one), cut into samples
// of one sequence each (job::token_samples).
#pragma once

#include <memory>

#include "executor/feed_column.h"
#include "job/token_file.h"

namespace weft::executor {

struct TokenColumnOptions {
  int64_t sequence = 0;    // tokens of a sample
  bool next = false;       // shifted by one: next_tokens
  int64_t vocabulary = 0;  // ids must be below it (embedding rows); 0: unknown
  std::string file;        // for messages
};

// Errors: kInvalid for a sequence below one, or a file whose stated vocabulary exceeds the model's.
Result<std::unique_ptr<FeedColumn>> make_token_column(job::TokenFile file,
                                                      const TokenColumnOptions& options);

}  // namespace weft::executor
