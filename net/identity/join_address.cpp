#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/hash.h"
#include "net/identity/authority.h"
#include "net/identity/names.h"

namespace weft::net {
namespace {

constexpr std::string_view kScheme = "weft://";
constexpr size_t kMaxTokenBytes = 128;

Error bad_address(const std::string& why) {
  return make_error(Code::kInvalid, "the join address is not usable: " + why,
                    "copy the whole line that `weft peer invite` printed: "
                    "weft://host:port/<64 hex digits>/<token>");
}

bool is_token(std::string_view text) {
  return !text.empty() && text.size() <= kMaxTokenBytes &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.' || c == '~';
         });
}

// host:port with IPv6 in brackets.
Status read_authority(std::string_view text, JoinAddress& out) {
  std::string_view port;
  if (!text.empty() && text.front() == '[') {
    const size_t close = text.find(']');
    if (close == std::string_view::npos || close + 1 >= text.size() || text[close + 1] != ':') {
      return bad_address("an IPv6 host is written [address]:port");
    }
    out.host = text.substr(1, close - 1);
    port = text.substr(close + 2);
    if (out.host.find(':') == std::string::npos || !is_ip_address(out.host)) {
      return bad_address(fmt::format("'{}' is no IPv6 address", out.host));
    }
  } else {
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos) return bad_address("it names no port");
    out.host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (!is_host_name(out.host)) return bad_address(fmt::format("'{}' is no host", out.host));
  }
  const char* end = port.data() + port.size();
  const auto [stop, error] = std::from_chars(port.data(), end, out.port);
  if (port.empty() || error != std::errc() || stop != end || out.port == 0) {
    return bad_address(fmt::format("'{}' is no port", port));
  }
  return {};
}

}  // namespace

std::string to_text(const JoinAddress& address) {
  const bool bracket = address.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}{}:{}/{}/{}", kScheme, bracket ? "[" : "", address.host,
                     bracket ? "]" : "", address.port, address.ca_fingerprint, address.token);
}

Result<JoinAddress> parse_join_address(const std::string& text) {
  std::string_view rest = text;
  if (rest.size() > 512) return bad_address("it is longer than 512 characters");
  if (rest.substr(0, kScheme.size()) != kScheme) return bad_address("it must begin with weft://");
  rest.remove_prefix(kScheme.size());
  const size_t first = rest.find('/');
  if (first == std::string_view::npos) return bad_address("the CA fingerprint is missing");
  const size_t second = rest.find('/', first + 1);
  if (second == std::string_view::npos) return bad_address("the token is missing");
  JoinAddress out;
  WEFT_TRY_STATUS(read_authority(rest.substr(0, first), out));
  out.ca_fingerprint = rest.substr(first + 1, second - first - 1);
  out.token = rest.substr(second + 1);
  if (!is_sha256_hex(out.ca_fingerprint)) {
    return bad_address("the CA fingerprint is not 64 hexadecimal digits in lower case");
  }
  if (!is_token(out.token)) return bad_address("the token is empty or has unexpected characters");
  return out;
}

}  // namespace weft::net
