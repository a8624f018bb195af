// Structured logs: one line a record, `time level program event key=value ...`, to standard error.
// Any thread may log. Set up once in main with log_init.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

namespace weft {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning", "error": the values of the setting log_level.
std::optional<LogLevel> log_level_from_name(std::string_view name);

// json: one JSON object a line instead of text.
void log_init(std::string_view program, LogLevel level, bool json);
void log_line(LogLevel level, std::string_view message);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace weft
