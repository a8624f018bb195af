#include <fmt/format.h>

#include <charconv>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/os/signals.h"
#include "net/blob/blob_store.h"

namespace weft::net {
namespace {

constexpr std::string_view kPrefix = "/api/v1/blobs/";
// Hashing more than this would keep the server's only thread from everyone else.
// (A chunk that meets a blob being hashed is told so and not kept waiting.)
constexpr uint64_t kHashInlineBytes = uint64_t{16} << 20;

std::optional<uint64_t> number(std::string_view text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::optional<uint64_t> query_number(const HttpRequest& request, const char* name) {
  const auto found = request.query.find(name);
  return found == request.query.end() ? std::nullopt : number(found->second);
}

struct Range {
  uint64_t offset = 0, length = 0;
};
enum class RangeKind { kWhole, kPart, kUnsatisfiable };

// One range of bytes; anything else (several, other units) means the whole, as RFC 9110 allows.
RangeKind read_range(const HttpRequest& request, uint64_t size, Range& out) {
  out = {0, size};
  const auto header = request.headers.find("range");
  if (header == request.headers.end()) return RangeKind::kWhole;
  std::string_view text = header->second;
  if (text.substr(0, 6) != "bytes=") return RangeKind::kWhole;
  text.remove_prefix(6);
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) return RangeKind::kWhole;
  const auto first = number(text.substr(0, dash)), last = number(text.substr(dash + 1));
  if (dash == 0) {  // the last n bytes
    if (!last) return RangeKind::kWhole;
    const uint64_t n = std::min(*last, size);
    if (n == 0) return RangeKind::kUnsatisfiable;
    out = {size - n, n};
    return RangeKind::kPart;
  }
  if (!first || (!last && dash + 1 != text.size())) return RangeKind::kWhole;
  if (last && *last < *first) return RangeKind::kWhole;
  if (*first >= size) return RangeKind::kUnsatisfiable;
  const uint64_t end = last ? std::min(*last, size - 1) : size - 1;
  out = {*first, end - *first + 1};
  return RangeKind::kPart;
}

HttpResponse get_blob(const BlobStore& store, const HttpRequest& request, const std::string& name) {
  const auto size = store.size_of(name);
  if (!size.ok()) {
    HttpResponse absent = problem_response(
        make_error(Code::kNotFound, fmt::format("no blob {} here", name), "upload it first"));
    absent.headers["weft-received"] = std::to_string(store.partial_size(name));
    return absent;
  }
  store.touch(name);
  Range range;
  HttpResponse response;
  response.content_type = "application/octet-stream";
  response.headers["accept-ranges"] = "bytes";
  const RangeKind kind = read_range(request, *size, range);
  if (kind == RangeKind::kUnsatisfiable) {
    response = problem_response(make_error(
        Code::kInvalid, fmt::format("blob {} has {} bytes, none in that range", name, *size)));
    response.status = 416;
    response.headers["content-range"] = fmt::format("bytes */{}", *size);
    return response;
  }
  if (kind == RangeKind::kPart) {
    response.status = 206;
    response.headers["content-range"] =
        fmt::format("bytes {}-{}/{}", range.offset, range.offset + range.length - 1, *size);
  }
  response.file = store.path_of(name);
  response.file_offset = range.offset;
  response.file_length = range.length;
  return response;
}

HttpResponse received(uint64_t bytes) {
  HttpResponse response;
  response.body = nlohmann::json{{"received", bytes}}.dump();
  return response;
}

HttpResponse failed(const BlobStore& store, const std::string& name, const Error& error) {
  HttpResponse response = problem_response(error);
  response.headers["weft-received"] = std::to_string(store.partial_size(name));
  return response;
}

Status check_chunk(const HttpRequest& request, uint64_t offset, uint64_t total,
                   uint64_t max_blob_bytes) {
  if (total > max_blob_bytes) {
    return make_error(Code::kTooLarge, fmt::format("a blob of {} bytes is over the limit of {}",
                                                   total, max_blob_bytes));
  }
  if (offset > total || request.body.size() > total - offset) {
    return make_error(Code::kInvalid, fmt::format("{} bytes at {} do not fit a blob of {} bytes",
                                                  request.body.size(), offset, total));
  }
  if (request.body.empty() && offset != total) {
    return make_error(Code::kInvalid, "a chunk must carry bytes");
  }
  return {};
}

void finish_blob(BlobStore store, const std::string& name, uint64_t total, const HttpReply& reply) {
  const Status done = store.finish(name);
  reply(done.ok() ? received(total) : failed(store, name, done.error()));
}

void put_blob(BlobStore& store, const HttpRequest& request, const std::string& name,
              uint64_t max_blob_bytes, const HttpReply& reply) {
  const auto offset = query_number(request, "offset"), total = query_number(request, "total");
  if (!offset || !total) {
    return reply(problem_response(make_error(Code::kInvalid, "offset and total must be numbers")));
  }
  if (Status good = check_chunk(request, *offset, *total, max_blob_bytes); !good.ok()) {
    return reply(problem_response(good.error()));
  }
  if (store.has(name)) {
    store.touch(name);
    return reply(received(*total));
  }
  const auto bytes = std::as_bytes(std::span(request.body.data(), request.body.size()));
  if (Status status = store.append(name, *offset, bytes); !status.ok()) {
    return reply(failed(store, name, status.error()));
  }
  const uint64_t now = *offset + bytes.size();
  if (now < *total) return reply(received(now));
  if (*total <= kHashInlineBytes) return finish_blob(store, name, *total, reply);
  std::thread([store, name, total = *total, reply] {
    os::name_thread("weft-hash");
    finish_blob(store, name, total, reply);
  }).detach();
}

}  // namespace

bool serve_blob(BlobStore& store, const HttpRequest& request, bool allow_put,
                uint64_t max_blob_bytes, const HttpReply& reply) {
  if (request.path.substr(0, kPrefix.size()) != kPrefix) return false;
  const std::string name = request.path.substr(kPrefix.size());
  if (!is_sha256_hex(name)) {
    reply(problem_response(make_error(Code::kInvalid,
                                      "a blob is named by the 64 lower-case hexadecimal digits of "
                                      "its SHA-256")));
  } else if (request.method == "GET" || request.method == "HEAD") {
    reply(get_blob(store, request, name));
  } else if (request.method == "PUT" && !allow_put) {
    reply(problem_response(make_error(Code::kDenied, "blobs cannot be uploaded here")));
  } else if (request.method == "PUT") {
    put_blob(store, request, name, max_blob_bytes, reply);
  } else {
    HttpResponse response = problem_response(
        make_error(Code::kInvalid, fmt::format("{} is no method of a blob", request.method)));
    response.status = 405;
    response.headers["allow"] = "GET, HEAD, PUT";
    reply(response);
  }
  return true;
}

}  // namespace weft::net
