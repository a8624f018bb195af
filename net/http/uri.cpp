#include "net/http/uri.h"

namespace weft::net {
namespace {

constexpr size_t kMaxQueryFields = 64;

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> decode(std::string_view text, bool plus_is_space) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = hex_value(text[i + 1]), low = hex_value(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = char(high * 16 + low);
      i += 2;
    } else if (c == '+' && plus_is_space) {
      c = ' ';
    }
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return std::nullopt;
    out += c;
  }
  return out;
}

bool read_query(std::string_view text, std::map<std::string, std::string>& out) {
  while (!text.empty()) {
    const size_t end = text.find('&');
    const std::string_view pair = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    const auto name = decode(pair.substr(0, equals), true);
    const auto value = equals == std::string_view::npos ? std::optional(std::string())
                                                        : decode(pair.substr(equals + 1), true);
    if (!name || !value || out.size() >= kMaxQueryFields) return false;
    out[*name] = *value;
  }
  return true;
}

}  // namespace

std::optional<Target> parse_target(std::string_view target) {
  if (target.empty() || target.front() != '/') return std::nullopt;
  const size_t mark = target.find('?');
  Target out;
  const auto path = decode(target.substr(0, mark), false);
  if (!path) return std::nullopt;
  out.path = *path;
  if (mark != std::string_view::npos && !read_query(target.substr(mark + 1), out.query)) {
    return std::nullopt;
  }
  return out;
}

}  // namespace weft::net
