// A column of a .npy array: row i is sample i.
#pragma once

#include <memory>
#include <string>

#include "executor/feed_column.h"
#include "job/token_file.h"

namespace weft::executor {

// file: for messages. Errors: kInvalid for an array without rows or of a dtype torch lacks.
Result<std::unique_ptr<FeedColumn>> make_array_column(job::NpyArray array, std::string file);

}  // namespace weft::executor
