#include "job/tokenize.h"

#include <fmt/format.h>

#include <vector>

#include "job/bpe.h"
#include "job/token_file.h"

namespace weft::job {
namespace {

constexpr int64_t kByteVocabulary = 256;

struct Tokens {
  std::vector<uint32_t> ids;
  int64_t vocabulary = kByteVocabulary;
};

Result<Tokens> tokens_of(const std::string& text, const std::string& tokenizer) {
  Tokens tokens;
  if (tokenizer.empty()) {
    tokens.ids.reserve(text.size());
    for (const char c : text) tokens.ids.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  WEFT_TRY(ByteLevelBpe bpe, ByteLevelBpe::load(tokenizer));
  WEFT_TRY(tokens.ids, bpe.encode(text));
  tokens.vocabulary = bpe.vocabulary();
  return tokens;
}

}  // namespace

Result<TokenizeReport> tokenize_file(const os::Path& input, const std::string& output_prefix,
                                     const std::string& tokenizer, double eval_fraction) {
  if (!(eval_fraction >= 0 && eval_fraction < 1)) {
    return make_error(Code::kInvalid, fmt::format("an evaluation fraction of {} is not from 0 to "
                                                  "below 1",
                                                  eval_fraction));
  }
  WEFT_TRY(const std::string text, os::read_file(input));
  Result<Tokens> made = tokens_of(text, tokenizer);
  if (!made.ok()) return std::move(made).error().within("tokenizing " + input.string());
  std::vector<uint32_t>& ids = made->ids;
  const auto eval_count = static_cast<size_t>(static_cast<double>(ids.size()) * eval_fraction);
  if (ids.empty() || (eval_fraction > 0 && eval_count == 0)) {
    return make_error(
        Code::kInvalid,
        fmt::format("{} has {} tokens, too few to divide", input.string(), ids.size()),
        "use a longer text");
  }
  const std::vector<uint32_t> eval(ids.end() - static_cast<ptrdiff_t>(eval_count), ids.end());
  ids.resize(ids.size() - eval_count);

  TokenizeReport report;
  report.vocabulary = made->vocabulary;
  report.dtype = made->vocabulary <= 65536 ? "uint16" : "uint32";
  report.text_bytes = static_cast<int64_t>(text.size());
  report.train_path = output_prefix + ".train.bin";
  report.train_tokens = static_cast<int64_t>(ids.size());
  WEFT_TRY_STATUS(write_token_file(report.train_path, ids, made->vocabulary));
  if (!eval.empty()) {
    report.eval_path = output_prefix + ".eval.bin";
    report.eval_tokens = static_cast<int64_t>(eval.size());
    WEFT_TRY_STATUS(write_token_file(report.eval_path, eval, made->vocabulary));
  }
  return report;
}

}  // namespace weft::job
