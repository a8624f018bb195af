#include "job/regex_split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

namespace weft::job {

#define WEFT_SPACE \
  "\\t-\\r "       \
  "\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
const std::string_view kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WEFT_SPACE "\\p{L}\\p{N}]+|[" WEFT_SPACE
    "]+(?![^" WEFT_SPACE "])|[" WEFT_SPACE "]+";
#undef WEFT_SPACE

struct RegexSplit::State {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  ~State() {
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
};

RegexSplit::RegexSplit(std::unique_ptr<State> state) : state_(std::move(state)) {}
RegexSplit::RegexSplit(RegexSplit&&) noexcept = default;
RegexSplit::~RegexSplit() = default;

namespace {

std::string pcre_message(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

Result<RegexSplit> RegexSplit::compile(std::string_view pattern) {
  int error = 0;
  PCRE2_SIZE where = 0;
  auto state = std::make_unique<State>();
  state->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &where, nullptr);
  if (state->code == nullptr) {
    return make_error(Code::kRefused, fmt::format("the pattern \"{}\" cannot be used: {} at {}",
                                                  pattern, pcre_message(error), where));
  }
  pcre2_jit_compile(state->code, PCRE2_JIT_COMPLETE);  // absent JIT: the interpreter does it
  state->match = pcre2_match_data_create_from_pattern(state->code, nullptr);
  return RegexSplit(std::move(state));
}

Status RegexSplit::split(std::string_view text,
                         const std::function<Status(std::string_view)>& piece) const {
  size_t at = 0, done = 0;  // searched from; handed out up to
  uint32_t options = 0;     // the first call checks the whole text's UTF-8, once
  while (at < text.size()) {
    const int count = pcre2_match(state_->code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), at, options, state_->match, nullptr);
    options = PCRE2_NO_UTF_CHECK;
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) {
      return make_error(Code::kInvalid,
                        fmt::format("cannot split the text: {}", pcre_message(count)),
                        "the text must be UTF-8: convert it with iconv");
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state_->match);
    const size_t begin = range[0], end = range[1];
    if (end <= begin) {  // an empty match cuts nothing
      at = end + 1;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
      continue;
    }
    if (begin > done) WEFT_TRY_STATUS(piece(text.substr(done, begin - done)));
    WEFT_TRY_STATUS(piece(text.substr(begin, end - begin)));
    at = done = end;
  }
  if (done < text.size()) WEFT_TRY_STATUS(piece(text.substr(done)));
  return {};
}

}  // namespace weft::job
