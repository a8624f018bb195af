// Result<T>: a value or an Error; how every folder of weft reports failure to its caller.
//
// Exceptions stay inside executor/, where libtorch throws. Thread-compatible, owns its contents.
// An Error says what failed and why (message) and what the user can do next (next).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace weft {

enum class Code {
  kInvalid,  // the input is wrong; repeating the call cannot help
  kRefused,  // understood, and not supported: a refused operator, a dynamic shape
  kNotFound,
  kExists,
  kDenied,       // not authenticated or not allowed
  kCorrupt,      // a checksum, signature or structure does not hold
  kTooLarge,     // over a stated bound
  kUnavailable,  // may work later: no peer, dead broker
  kTimeout,
  kCancelled,
  kIo,
  kInternal,
};

// Stable lower-case name of a code, as JSON and logs print it: "invalid", "not_found", ...
const char* code_name(Code code);
std::optional<Code> code_from_name(const std::string& name);

struct Error {
  Code code = Code::kInternal;
  std::string message;  // what failed and why, with the offending name or number
  std::string next;     // what to do next; may be empty
  std::string node;     // the graph node concerned, if any
  std::string op;       // the operator concerned, if any

  // "message (next)" on one line, for logs and terminals.
  std::string text() const;
  // Returns this error with "context: " put before the message.
  Error within(const std::string& context) &&;
};

inline Error make_error(Code code, std::string message, std::string next = {}) {
  return Error{code, std::move(message), std::move(next), {}, {}};
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    WEFT_CHECK(ok());
    return std::get<0>(state_);
  }
  const T& value() const& {
    WEFT_CHECK(ok());
    return std::get<0>(state_);
  }
  T&& value() && {
    WEFT_CHECK(ok());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& {
    WEFT_CHECK(!ok());
    return std::get<1>(state_);
  }
  Error&& error() && {
    WEFT_CHECK(!ok());
    return std::get<1>(std::move(state_));
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const& {
    WEFT_CHECK(!ok());
    return *error_;
  }
  Error&& error() && {
    WEFT_CHECK(!ok());
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace weft

#define WEFT_CONCAT_(a, b) a##b
#define WEFT_CONCAT(a, b) WEFT_CONCAT_(a, b)

// WEFT_TRY(auto x, call()): declares x from the value, or returns the error to the caller.
#define WEFT_TRY(declaration, expression)                          \
  auto WEFT_CONCAT(weft_result_, __LINE__) = (expression);         \
  if (!WEFT_CONCAT(weft_result_, __LINE__).ok()) {                 \
    return std::move(WEFT_CONCAT(weft_result_, __LINE__)).error(); \
  }                                                                \
  declaration = std::move(WEFT_CONCAT(weft_result_, __LINE__)).value()

// WEFT_TRY_STATUS(call()): returns the error to the caller, if there is one.
#define WEFT_TRY_STATUS(expression)                             \
  do {                                                          \
    if (auto weft_status_ = (expression); !weft_status_.ok()) { \
      return std::move(weft_status_).error();                   \
    }                                                           \
  } while (false)
