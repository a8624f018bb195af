#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <fstream>
#include <thread>

#include "base/hash.h"
#include "net/blob/blob_store.h"

namespace weft::net {
namespace {

using Milliseconds = std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr int kMaxConflicts = 16;  // refusals in a row by a server that has not moved
constexpr int64_t kFirstPauseMs = 100, kLastPauseMs = 2000, kCancelPollMs = 50;

// When to try again, and when to give up.
class Patience {
 public:
  explicit Patience(const TransferOptions& options) : options_(options) {}

  Status check() const {
    if (!options_.cancelled || !options_.cancelled()) return {};
    return make_error(Code::kCancelled, "the transfer was cancelled");
  }
  void progress() {
    pause_ms_ = kFirstPauseMs;
    alive();
  }
  // The other side is at work and says so: there is a reason to wait, none to ask more often.
  void alive() { since_ = SteadyClock::now(); }
  static bool transient(const Error& error) {
    return error.code == Code::kUnavailable || error.code == Code::kTimeout;
  }
  bool exhausted() const {
    const auto still = std::chrono::duration_cast<Milliseconds>(SteadyClock::now() - since_);
    return still.count() + pause_ms_ > options_.patience_ms;
  }
  // Waits for the next attempt; the error itself when there is none to come.
  Status wait(const Error& error) {
    if (!transient(error) || exhausted()) return error;
    for (int64_t left = pause_ms_; left > 0; left -= kCancelPollMs) {
      WEFT_TRY_STATUS(check());
      std::this_thread::sleep_for(Milliseconds(std::min(left, kCancelPollMs)));
    }
    pause_ms_ = std::min(2 * pause_ms_, kLastPauseMs);
    return check();
  }

 private:
  const TransferOptions& options_;
  int64_t pause_ms_ = kFirstPauseMs;
  SteadyClock::time_point since_ = SteadyClock::now();
};

std::string blob_target(const std::string& sha256) {
  return "/api/v1/blobs/" + sha256;
}

std::optional<uint64_t> header_number(const HttpResponse& response, const char* name) {
  const auto found = response.headers.find(name);
  if (found == response.headers.end()) return std::nullopt;
  uint64_t value = 0;
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// One chunk at offset, as the source gave it.
Result<std::string> get_chunk(HttpClient& client, const std::string& sha256, uint64_t offset,
                              uint64_t bytes) {
  const uint64_t want = std::min(bytes - offset, kBlobChunkBytes);
  WEFT_TRY(auto response,
           client.request("GET", blob_target(sha256), {},
                          {{"range", fmt::format("bytes={}-{}", offset, offset + want - 1)}}));
  if (response.status >= 400) return error_from_response(response);
  const std::string range = fmt::format("bytes {}-{}/{}", offset, offset + want - 1, bytes);
  const bool good = response.status == 206 && response.headers["content-range"] == range &&
                    response.body.size() == want;
  if (!good) {
    return make_error(
        Code::kCorrupt,
        fmt::format("asked for {}, got status {}, '{}', {} bytes", range, response.status,
                    response.headers["content-range"], response.body.size()));
  }
  return std::move(response.body);
}

// Fetches the rest of a blob from one source. own_bytes: of what this source delivered.
Status fetch_rest(BlobStore& store, const std::string& sha256, uint64_t bytes, HttpClient& client,
                  uint64_t& own_bytes, Patience& patience) {
  while (!store.has(sha256)) {
    WEFT_TRY_STATUS(patience.check());
    const uint64_t offset = store.partial_size(sha256);
    // Longer than it may be, or (a blob of no bytes, a crash after the last chunk) complete.
    if (offset >= bytes) {
      if (bytes == 0 && offset == 0) WEFT_TRY_STATUS(store.append(sha256, 0, {}));
      return store.finish(sha256);
    }
    auto chunk = get_chunk(client, sha256, offset, bytes);
    if (!chunk.ok()) return std::move(chunk).error();  // another source may have it
    const Status stored =
        store.append(sha256, offset, std::as_bytes(std::span(chunk->data(), chunk->size())));
    if (stored.ok()) {
      own_bytes += chunk->size();
      patience.progress();
    } else if (stored.error().code != Code::kExists) {  // else another writer was faster
      return stored;
    }
  }
  return {};
}

Status fetch_from(BlobStore& store, const std::string& sha256, uint64_t bytes,
                  const HttpClientOptions& source, Patience& patience) {
  HttpClient client(source);
  uint64_t own_bytes = 0;
  Status status = fetch_rest(store, sha256, bytes, client, own_bytes, patience);
  // What did not hold may have come from an earlier source: this one gets a clean start.
  const bool mixed = !status.ok() && status.error().code == Code::kCorrupt && own_bytes < bytes &&
                     store.partial_size(sha256) == 0;
  if (!mixed) return status;
  own_bytes = 0;
  return fetch_rest(store, sha256, bytes, client, own_bytes, patience);
}

// All bytes are there and the server still verifies them: a large blob takes it minutes.
bool verifying(const HttpResponse& response, uint64_t total) {
  return response.status == 503 && header_number(response, "weft-received") == total;
}

Error not_what_was_sent(const std::string& sha256) {
  return make_error(Code::kCorrupt,
                    fmt::format("the server received {} whole, but it has another hash", sha256),
                    "the file must not change while it is uploaded");
}

// Where to go on after a refused chunk: the server says how much it has.
std::optional<uint64_t> resume_at(const HttpResponse& response, uint64_t total) {
  if (response.status != 409) return std::nullopt;
  const auto received = header_number(response, "weft-received");
  return received && *received <= total ? received : std::nullopt;
}

Result<std::string> read_chunk(std::ifstream& in, const os::Path& file, uint64_t offset,
                               uint64_t total) {
  std::string chunk(size_t(std::min(total - offset, kBlobChunkBytes)), '\0');
  in.clear();
  if (!in.seekg(std::streamoff(offset)) || !in.read(chunk.data(), std::streamsize(chunk.size()))) {
    return make_error(Code::kIo, fmt::format("cannot read {} at {}", file.string(), offset),
                      "the file must not change while it is uploaded");
  }
  return chunk;
}

}  // namespace

Status fetch_blob(BlobStore& store, const std::string& sha256, uint64_t bytes,
                  const std::vector<HttpClientOptions>& sources, const TransferOptions& options) {
  if (!is_sha256_hex(sha256)) {
    return make_error(Code::kInvalid, "a blob is named by 64 lower-case hexadecimal digits");
  }
  Patience patience(options);
  for (;;) {
    if (store.has(sha256)) return {};
    std::string reasons;
    bool again = false;
    for (const HttpClientOptions& source : sources) {
      const Status status = fetch_from(store, sha256, bytes, source, patience);
      if (status.ok()) return {};
      const Error& error = status.error();
      if (error.code == Code::kIo || error.code == Code::kCancelled) return status;  // our own side
      again = again || Patience::transient(error);
      reasons += fmt::format("{}{}:{}: {}", reasons.empty() ? "" : "; ", source.host, source.port,
                             error.message);
    }
    const Error error = make_error(
        Code::kUnavailable,
        fmt::format("none of {} sources delivered blob {}: {}", sources.size(), sha256, reasons),
        "upload it again, or wait for a peer that has it");
    if (!again) return error;
    WEFT_TRY_STATUS(patience.wait(error));
  }
}

namespace {

// The answer, after as many attempts as patience allows.
template <typename Ask>
Result<HttpResponse> patiently(Patience& patience, Ask ask) {
  for (;;) {
    WEFT_TRY_STATUS(patience.check());
    auto response = ask();
    if (response.ok()) return response;
    WEFT_TRY_STATUS(patience.wait(response.error()));
  }
}

}  // namespace

Result<uint64_t> upload_blob(HttpClient& client, const std::string& sha256, const os::Path& file,
                             const TransferOptions& options) {
  std::error_code ec;
  const uint64_t total = std::filesystem::file_size(file, ec);
  std::ifstream in(file, std::ios::binary);
  if (ec || !in) return make_error(Code::kNotFound, fmt::format("cannot open {}", file.string()));
  Patience patience(options);
  WEFT_TRY(auto head,
           patiently(patience, [&] { return client.request("HEAD", blob_target(sha256)); }));
  if (head.status == 200) return uint64_t{0};
  if (head.status != 404) return error_from_response(head);
  uint64_t offset = std::min(header_number(head, "weft-received").value_or(0), total);
  uint64_t sent = 0;
  bool resumed = offset > 0;
  bool awaited = false;  // the last answer was that the server verifies
  for (int conflicts = 0;;) {
    // A chunk that did arrive answers 409 when it is sent again, and we go on.
    uint64_t size = 0;
    WEFT_TRY(auto response, patiently(patience, [&]() -> Result<HttpResponse> {
               WEFT_TRY(std::string chunk, read_chunk(in, file, offset, total));
               size = chunk.size();
               return client.request(
                   "PUT", fmt::format("{}?offset={}&total={}", blob_target(sha256), offset, total),
                   std::move(chunk), {{"content-type", "application/octet-stream"}});
             }));
    sent += size;
    if (verifying(response, total)) {
      patience.alive();
      awaited = true;
      offset = total;  // asking costs no bytes
      WEFT_TRY_STATUS(patience.wait(error_from_response(response)));
      continue;
    }
    if (const auto at = resume_at(response, total)) {
      if (std::exchange(awaited, false) && *at == 0) {  // what it verified did not hold
        if (!resumed) return not_what_was_sent(sha256);
        resumed = false;
      }
      if (*at <= offset && ++conflicts >= kMaxConflicts) return error_from_response(response);
      offset = *at;
      continue;
    }
    if (response.status >= 400) {
      Error error = error_from_response(response);
      if (Patience::transient(error)) {
        WEFT_TRY_STATUS(patience.wait(error));
        continue;
      }
      if (error.code != Code::kCorrupt || !resumed) return error;
      resumed = false;  // what lay there before us was wrong and is gone now
      offset = 0;
      continue;
    }
    patience.progress();
    conflicts = 0;
    offset += size;
    if (offset >= total) return sent;
  }
}

}  // namespace weft::net
