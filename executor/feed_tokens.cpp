#include "executor/feed_tokens.h"

#include <fmt/format.h>

#include <cstring>

namespace weft::executor {
namespace {

template <typename Token>
int64_t widen(const std::byte* source, int64_t count, int64_t* target) {
  int64_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    Token token;
    std::memcpy(&token, source + i * static_cast<int64_t>(sizeof(Token)), sizeof(Token));
    target[i] = static_cast<int64_t>(token);
    largest = std::max(largest, target[i]);
  }
  return largest;
}

class TokenColumn final : public FeedColumn {
 public:
  TokenColumn(job::TokenFile file, TokenColumnOptions options)
      : file_(std::move(file)),
        options_(std::move(options)),
        samples_(job::token_samples(file_.count, options_.sequence)),
        row_sizes_{options_.sequence} {}

  int64_t samples() const override { return samples_; }
  const std::vector<int64_t>& row_sizes() const override { return row_sizes_; }

  Result<at::Tensor> rows(std::span<const int64_t> samples) const override {
    const int64_t sequence = options_.sequence;
    at::Tensor result = at::empty({static_cast<int64_t>(samples.size()), sequence}, at::kLong);
    auto* target = result.mutable_data_ptr<int64_t>();
    for (const int64_t sample : samples) {
      if (sample < 0 || sample >= samples_) {
        return make_error(Code::kInvalid, fmt::format("sample {} of {} asked from token file {}",
                                                      sample, samples_, options_.file));
      }
      const int64_t first = sample * sequence + (options_.next ? 1 : 0);
      const std::byte* source =
          file_.bytes.data() + first * static_cast<int64_t>(dtype_bytes(file_.dtype));
      const int64_t largest = file_.dtype == DType::kUint16
                                  ? widen<uint16_t>(source, sequence, target)
                                  : widen<uint32_t>(source, sequence, target);
      if (options_.vocabulary > 0 && largest >= options_.vocabulary) {
        return make_error(Code::kInvalid,
                          fmt::format("token id {} in sample {} of {}: the model's embedding has "
                                      "{} rows",
                                      largest, sample, options_.file, options_.vocabulary),
                          "tokenize with the model's own tokenizer, or export a larger vocabulary");
      }
      target += sequence;
    }
    return result;
  }

 private:
  job::TokenFile file_;
  TokenColumnOptions options_;
  int64_t samples_;
  std::vector<int64_t> row_sizes_;
};

}  // namespace

Result<std::unique_ptr<FeedColumn>> make_token_column(job::TokenFile file,
                                                      const TokenColumnOptions& options) {
  if (options.sequence < 1) {
    return make_error(
        Code::kInvalid,
        fmt::format("token file {}: a sequence of {} tokens", options.file, options.sequence),
        "bind tokens to an input of shape [batch, sequence]");
  }
  if (file.dtype != DType::kUint16 && file.dtype != DType::kUint32) {
    return make_error(Code::kInvalid, fmt::format("token file {} holds {}, not uint16 or uint32",
                                                  options.file, dtype_name(file.dtype)));
  }
  if (options.vocabulary > 0 && file.vocabulary > options.vocabulary) {
    return make_error(Code::kInvalid,
                      fmt::format("token file {} has a vocabulary of {} ids, the model's embedding "
                                  "{} rows",
                                  options.file, file.vocabulary, options.vocabulary),
                      "tokenize with the model's own tokenizer, or export a larger vocabulary");
  }
  return std::unique_ptr<FeedColumn>(new TokenColumn(std::move(file), options));
}

}  // namespace weft::executor
