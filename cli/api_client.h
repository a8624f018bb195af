// The broker's HTTP API as JSON calls; every verb that needs a cluster goes through here.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/app.h"
#include "cli/contexts.h"
#include "net/http/http.h"

namespace weft::cli {

class ApiClient {
 public:
  explicit ApiClient(const Context& context);
  // Of the login the user chose.
  static Result<ApiClient> open(const Globals& globals);

  // A response of status >= 400 is an error with the broker's own message and advice.
  Result<nlohmann::json> call(const std::string& method, const std::string& target,
                              const nlohmann::json& body = nullptr);
  Result<nlohmann::json> get(const std::string& target) { return call("GET", target); }
  net::HttpClient& http() { return http_; }

 private:
  std::string broker_;
  net::HttpClient http_;
};

// Percent-encodes one segment of a path.
std::string path_segment(const std::string& text);

}  // namespace weft::cli
