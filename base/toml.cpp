#include "base/toml.h"

#include <fmt/format.h>

#include <algorithm>

namespace weft {
namespace {

constexpr size_t kMaxBytes = size_t{4} << 20;
constexpr int kMaxDepth = 64;  // of brackets, and of the parts of one dotted key

// How deep a text nests, without building anything: toml++ recurses over what it built, and bounds
// brackets but no dotted keys.
class DepthScanner {
 public:
  explicit DepthScanner(std::string_view text) : text_(text) {}

  bool too_deep() {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"' || c == '\'') {
        skip_string(c);
      } else if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '.') {
        ++dots_;
      } else if (c == '[' || c == '{') {
        ++brackets_;
        dots_ = 0;
      } else if (c == ']' || c == '}') {
        --brackets_;
      } else if (c == ',' || c == '=' || c == '\n') {
        dots_ = 0;
      }
      if (brackets_ > kMaxDepth || dots_ > kMaxDepth) return true;
    }
    return false;
  }

 private:
  // Behind the opening quote; to behind the closing one, or the three of them.
  void skip_string(char quote) {
    const std::string two(2, quote);
    const bool block = text_.substr(at_, 2) == two;
    if (block) at_ += 2;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '\\' && quote == '"') {
        ++at_;
      } else if (c == quote && (!block || text_.substr(at_, 2) == two)) {
        if (block) at_ += 2;
        // A block may end in two quotes of its own.
        for (int i = 0; block && i < 2 && at_ < text_.size() && text_[at_] == quote; ++i) ++at_;
        return;
      } else if (c == '\n' && !block) {
        return;  // broken: the parser says so
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  int brackets_ = 0, dots_ = 0;
};

}  // namespace

Result<toml::table> parse_toml(std::string_view text, const std::string& source) {
  if (text.size() > kMaxBytes) {
    return make_error(Code::kInvalid, fmt::format("{} has {} bytes, at most {} are read", source,
                                                  text.size(), kMaxBytes));
  }
  if (DepthScanner(text).too_deep()) {
    return make_error(Code::kInvalid,
                      fmt::format("{} is nested deeper than {} levels", source, kMaxDepth));
  }
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    const auto& where = error.source().begin;
    return make_error(Code::kInvalid, fmt::format("{}, line {}, column {}: {}", source, where.line,
                                                  where.column, error.description()));
  } catch (const std::exception& error) {
    return make_error(Code::kInvalid, fmt::format("{}: {}", source, error.what()));
  }
}

}  // namespace weft
