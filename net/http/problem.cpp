#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "net/http/http.h"

namespace weft::net {
namespace {

using nlohmann::json;

const char* title(Code code) {
  switch (code) {
    case Code::kInvalid:
      return "The request is not valid";
    case Code::kRefused:
      return "Not supported";
    case Code::kNotFound:
      return "Not found";
    case Code::kExists:
      return "Conflict with what exists";
    case Code::kDenied:
      return "Not allowed";
    case Code::kCorrupt:
      return "The content is corrupt";
    case Code::kTooLarge:
      return "Too large";
    case Code::kUnavailable:
      return "Not available now";
    case Code::kTimeout:
      return "Timed out";
    case Code::kCancelled:
      return "Cancelled";
    case Code::kIo:
      return "Input or output failed";
    case Code::kInternal:
      return "Internal error";
  }
  return "Error";
}

Code code_of_status(int status) {
  switch (status) {
    case 401:
    case 403:
      return Code::kDenied;
    case 404:
      return Code::kNotFound;
    case 408:
    case 504:
      return Code::kTimeout;
    case 409:
      return Code::kExists;
    case 413:
      return Code::kTooLarge;
    case 422:
      return Code::kRefused;
    case 429:
    case 502:
    case 503:
      return Code::kUnavailable;
    default:
      return status < 500 ? Code::kInvalid : Code::kInternal;
  }
}

std::string field(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

int http_status(Code code) {
  switch (code) {
    case Code::kInvalid:
      return 400;
    case Code::kRefused:
      return 422;
    case Code::kNotFound:
      return 404;
    case Code::kExists:
      return 409;
    case Code::kDenied:
      return 403;
    case Code::kCorrupt:
      return 422;
    case Code::kTooLarge:
      return 413;
    case Code::kUnavailable:
      return 503;
    case Code::kTimeout:
      return 504;
    case Code::kCancelled:
      return 409;
    case Code::kIo:
      return 500;
    case Code::kInternal:
      return 500;
  }
  return 500;
}

HttpResponse problem_response(const Error& error) {
  const int status = http_status(error.code);
  const json body = {{"type", std::string("urn:weft:error:") + code_name(error.code)},
                     {"title", title(error.code)},
                     {"status", status},
                     {"detail", error.message},
                     {"code", code_name(error.code)},
                     {"next", error.next},
                     {"node", error.node},
                     {"op", error.op}};
  HttpResponse response;
  response.status = status;
  response.content_type = "application/problem+json";
  response.body = body.dump(-1, ' ', false, json::error_handler_t::replace);
  return response;
}

Error error_from_response(const HttpResponse& response) {
  Error error;
  error.code = code_of_status(response.status);
  error.message = fmt::format("the server answered {}", response.status);
  const json body = json::parse(response.body, nullptr, false);
  if (!body.is_object()) return error;
  if (const auto code = code_from_name(field(body, "code"))) error.code = *code;
  if (std::string detail = field(body, "detail"); !detail.empty()) error.message = detail;
  error.next = field(body, "next");
  error.node = field(body, "node");
  error.op = field(body, "op");
  return error;
}

}  // namespace weft::net
