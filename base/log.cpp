#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace weft {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// The message as a JSON string body: quotes, backslashes and control characters escaped.
std::string escape_json(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out;
}

bool json_lines = false;

}  // namespace

std::optional<LogLevel> log_level_from_name(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return std::nullopt;
}

void log_init(std::string_view program, LogLevel level, bool json) {
  auto logger = std::make_shared<spdlog::logger>(std::string(program),
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(to_spdlog(level));
  logger->flush_on(spdlog::level::debug);
  json_lines = json;
  logger->set_pattern(
      json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","program":"%n","message":"%v"})"
           : "%Y-%m-%dT%H:%M:%S.%eZ %l %n %v",
      spdlog::pattern_time_type::utc);
  spdlog::set_default_logger(std::move(logger));
}

void log_line(LogLevel level, std::string_view message) {
  // A newline inside a record would let a message forge another record, and an escape would reach
  // the terminal that shows it.
  if (json_lines) {
    spdlog::log(to_spdlog(level), "{}", escape_json(message));
    return;
  }
  std::string line(message);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  spdlog::log(to_spdlog(level), "{}", line);
}

}  // namespace weft
