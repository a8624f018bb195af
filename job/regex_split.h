// A Unicode pattern that cuts a text into pieces (PCRE2). Private to the tokenizer.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "base/result.h"

namespace weft::job {

class RegexSplit {
 public:
  static Result<RegexSplit> compile(std::string_view pattern);
  RegexSplit(RegexSplit&&) noexcept;
  ~RegexSplit();

  // Calls piece for each match and each gap between matches, in order. kInvalid: not UTF-8.
  Status split(std::string_view text, const std::function<Status(std::string_view)>& piece) const;

 private:
  struct State;
  explicit RegexSplit(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// GPT-2's pattern. White space is spelled out: PCRE's \s differs from Unicode's by U+180E.
extern const std::string_view kGpt2Pattern;

}  // namespace weft::job
