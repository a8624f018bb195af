#include "net/codec/parse.h"

#include <google/protobuf/stubs/logging.h>

#include <limits>

#include "base/clock.h"
#include "base/log.h"
#include "base/log_limit.h"

namespace weft::net {
namespace {

void write_to_log(google::protobuf::LogLevel level, const char*, int, const std::string& message) {
  if (level == google::protobuf::LOGLEVEL_FATAL) {
    log_error("protobuf: {}", message);
    return;
  }
  static LogLimit limit;
  if (const auto note = limit.admit(SystemClock().monotonic_ms())) {
    log_warning("protobuf: {}{}", message, *note);
  }
}

// protobuf wants its handler set before there are threads: before main, in every program that
// parses.
[[maybe_unused]] const auto kReplaced = google::protobuf::SetLogHandler(write_to_log);

}  // namespace

bool parse_message(std::string_view bytes, google::protobuf::MessageLite& message) {
  return bytes.size() <= size_t{std::numeric_limits<int>::max()} &&
         message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

}  // namespace weft::net
