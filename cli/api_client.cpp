#include "cli/api_client.h"

#include <fmt/format.h>

#include <cctype>

namespace weft::cli {
namespace {

net::HttpClientOptions options_of(const Context& context) {
  net::HttpClientOptions options;
  options.host = context.host;
  options.port = context.port;
  options.ca_fingerprint = context.ca_fingerprint;
  options.bearer_token = context.token;
  options.timeout_ms = 60000;
  return options;
}

}  // namespace

ApiClient::ApiClient(const Context& context)
    : broker_(fmt::format("{}:{}", context.host, context.port)), http_(options_of(context)) {}

Result<ApiClient> ApiClient::open(const Globals& globals) {
  WEFT_TRY(Context context, find_context(globals.context));
  return ApiClient(context);
}

Result<nlohmann::json> ApiClient::call(const std::string& method, const std::string& target,
                                       const nlohmann::json& body) {
  auto response = http_.request(method, target, body.is_null() ? std::string() : body.dump());
  if (!response.ok()) {
    Error error =
        std::move(response).error().within("the broker at " + broker_ + " did not answer");
    if (error.next.empty()) error.next = "is it running? `weft up` starts one here";
    return error;
  }
  if (response->status >= 400) return net::error_from_response(*response);
  if (response->body.empty()) return nlohmann::json::object();
  auto parsed = nlohmann::json::parse(response->body, nullptr, false);
  if (parsed.is_discarded()) {
    return make_error(Code::kCorrupt, "the broker's answer to " + target + " is not JSON");
  }
  return parsed;
}

std::string path_segment(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.') {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    }
  }
  return out;
}

}  // namespace weft::cli
