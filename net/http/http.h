// HTTP over TLS: the broker's API, its client in weft and weftd, and peers serving blobs to each
// other. Boost.Beast inside; nothing of Beast leaks out of this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/buffer.h"
#include "base/os/file.h"
#include "base/result.h"

namespace weft::net {

struct HttpRequest {
  std::string method;
  std::string path;  // decoded, without query: "/api/v1/jobs/j-1"
  std::map<std::string, std::string> query;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // bounded by max_body_bytes, see admit
  std::string client_certificate_pem;          // verified against the CA; empty: none given
  std::string remote_address;
};

// A body that is made as it is sent: fills the front of the room, returns how much of it; 0: the
// body ends. For content that has no length beforehand (chunked transfer).
using HttpSource = std::function<size_t(std::span<char> room)>;

struct HttpResponse {
  int status = 200;
  std::map<std::string, std::string> headers;
  std::string content_type = "application/json";
  std::string body;
  // Instead of body: a byte range of a file.
  os::Path file;
  uint64_t file_offset = 0, file_length = 0;
  HttpSource source;  // instead of body, to HTTP/1.1: asked on the server's thread
};

// A request's body that is looked at as it comes and not kept. On the server's thread.
class HttpUpload {
 public:
  virtual ~HttpUpload() = default;
  // False: nothing more is wanted; the answer goes out at once and the connection ends. First
  // called without bytes, before any is read.
  virtual bool take(size_t bytes) = 0;
  // The answer, when the body has ended or is no longer wanted.
  virtual HttpResponse end() = 0;
};

// Calls may finish later and from any thread (long poll): reply is called exactly once.
using HttpReply = std::function<void(HttpResponse)>;
using HttpHandler = std::function<void(HttpRequest, HttpReply)>;

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;                             // 0: any
  std::string certificate_pem, key_pem, ca_pem;  // ca: clients may present certificates of it
  bool require_client_certificate = false;
  uint64_t max_body_bytes = uint64_t{16} << 20;
  // Asked on the server's thread once the header has come (the request has no body yet): whether
  // the caller may send a body of up to max_body_bytes. Others get stranger_body_bytes, so that
  // strangers cannot fill the memory; what else they may is the handler's business. Empty: anyone.
  std::function<bool(const HttpRequest&)> admit;
  uint64_t stranger_body_bytes = uint64_t{64} << 10;
  // Asked like admit: who takes this request's body and answers it, instead of the handler; no
  // bound of bytes but its own. nullptr: an ordinary request.
  std::function<std::unique_ptr<HttpUpload>(const HttpRequest&)> upload;
  int32_t idle_timeout_ms = 60000;
  int32_t max_connections = 1000;
};

// Owns one thread ("weft-http") on which handlers are called. stop() ends it and drops connections.
class HttpServer {
 public:
  static Result<std::unique_ptr<HttpServer>> start(const HttpServerOptions& options,
                                                   HttpHandler handler);
  virtual ~HttpServer() = default;
  virtual uint16_t port() const = 0;
  virtual void stop() = 0;
};

struct HttpClientOptions {
  std::string host;
  uint16_t port = 0;
  std::string ca_fingerprint;  // pin: some certificate of the presented chain has this SHA-256
  std::string ca_pem;          // or: verified against this CA
  // Peer id the certificate must carry, or "broker": any of that kind. Empty: any of ca_pem, under
  // a pin a broker, since every peer has a certificate of the same authority. Workers never serve.
  std::string expect_subject;
  std::string certificate_pem, key_pem;  // our own, optional
  std::string bearer_token;
  int32_t timeout_ms = 30000;  // connect, and idle while transferring
};

// Bodies that are not kept, in either direction.
struct HttpFlow {
  HttpSource send;  // the request's; ends early where the server answers before it has all
  // As bytes of the answer's come, if its status is below 300; false: enough, and the connection
  // ends.
  std::function<bool(size_t bytes)> arrived;
};

// Blocking, one connection, reconnects when it was closed. One thread at a time.
class HttpClient {
 public:
  explicit HttpClient(HttpClientOptions options);
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) noexcept;
  // Errors are of transport only (kUnavailable, kTimeout, kDenied for a pin or certificate that
  // does not hold); an HTTP status of any kind is a response.
  Result<HttpResponse> request(const std::string& method, const std::string& target,
                               std::string body = {},
                               std::map<std::string, std::string> headers = {});
  // The same with bodies that are not kept; never repeated on a fresh connection.
  Result<HttpResponse> stream(const std::string& method, const std::string& target,
                              const HttpFlow& flow);
  // Any thread: the request under way ends with kCancelled, and so does every later one.
  void interrupt();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// RFC 9457 problem details for an error; the status follows from its code.
HttpResponse problem_response(const Error& error);
// The reverse, for clients: an Error from a response of status >= 400.
Error error_from_response(const HttpResponse& response);
int http_status(Code code);

}  // namespace weft::net
