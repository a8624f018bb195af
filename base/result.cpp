#include "base/result.h"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace weft {
namespace {
struct CodeName {
  Code code;
  const char* name;
};
constexpr std::array kCodeNames = {
    CodeName{Code::kInvalid, "invalid"},
    CodeName{Code::kRefused, "refused"},
    CodeName{Code::kNotFound, "not_found"},
    CodeName{Code::kExists, "exists"},
    CodeName{Code::kDenied, "denied"},
    CodeName{Code::kCorrupt, "corrupt"},
    CodeName{Code::kTooLarge, "too_large"},
    CodeName{Code::kUnavailable, "unavailable"},
    CodeName{Code::kTimeout, "timeout"},
    CodeName{Code::kCancelled, "cancelled"},
    CodeName{Code::kIo, "io"},
    CodeName{Code::kInternal, "internal"},
};
}  // namespace

const char* code_name(Code code) {
  for (const CodeName& entry : kCodeNames) {
    if (entry.code == code) return entry.name;
  }
  return "internal";
}

std::optional<Code> code_from_name(const std::string& name) {
  for (const CodeName& entry : kCodeNames) {
    if (name == entry.name) return entry.code;
  }
  return std::nullopt;
}

std::string Error::text() const {
  return next.empty() ? message : message + " (" + next + ")";
}

Error Error::within(const std::string& context) && {
  message = context + ": " + message;
  return std::move(*this);
}

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, condition);
  std::abort();
}

}  // namespace weft
