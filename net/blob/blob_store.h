// Content-addressed files: a blob's name is the SHA-256 of its bytes. A store is a folder
// (<dir>/ab/abcd...); partial uploads and downloads live beside it until they verify.
// Thread-safe across processes by atomic rename.
#pragma once

#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/os/file.h"
#include "net/http/http.h"

namespace weft::net {

inline constexpr uint64_t kBlobChunkBytes = uint64_t{4} << 20;

// A file of the store: a whole blob, or what a transfer or a crash left of one.
struct BlobFile {
  std::string name;
  os::Path path;
  bool complete = false;
  uint64_t bytes = 0;
  int64_t age_ms = 0;  // since it was written or asked for
};

class BlobStore {
 public:
  static Result<BlobStore> open(const os::Path& dir);

  bool has(const std::string& sha256) const;
  os::Path path_of(const std::string& sha256) const;
  Result<uint64_t> size_of(const std::string& sha256) const;
  std::vector<std::string> list() const;
  Status remove(const std::string& sha256);

  std::vector<BlobFile> files() const;
  // Whether it was removed: not if it became younger than least_age_ms meanwhile.
  Result<bool> remove_if_older(const BlobFile& file, int64_t least_age_ms);
  // Somebody relies on the blob: its age counts from now.
  void touch(const std::string& sha256) const;

  // Stores bytes; returns the name.
  Result<std::string> put(std::span<const std::byte> data);

  // Resumable writing by name: bytes received so far; append at exactly that offset; finish
  // verifies the hash (kCorrupt: the partial file is discarded) and publishes. Neither waits for
  // another writer: kUnavailable while one appends or verifies.
  uint64_t partial_size(const std::string& sha256) const;
  Status append(const std::string& sha256, uint64_t offset, std::span<const std::byte> data);
  Status finish(const std::string& sha256);

 private:
  explicit BlobStore(os::Path dir) : dir_(std::move(dir)) {}
  os::Path dir_;
};

// Serves and takes blobs over HTTP; returns false if the path is not a blob path.
//   GET  /api/v1/blobs/<sha256>            (Range honoured)
//   HEAD /api/v1/blobs/<sha256>            200 with content-length, or 404 with weft-received: N
//   PUT  /api/v1/blobs/<sha256>?offset=N&total=M   a chunk; 200 {"received":N}, done when N == M;
//        503 with weft-received: M while the whole is being verified: ask again with no bytes at M
// allow_put: whether uploads are accepted. Authorisation is the caller's.
bool serve_blob(BlobStore& store, const HttpRequest& request, bool allow_put,
                uint64_t max_blob_bytes, const HttpReply& reply);

struct TransferOptions {
  // What is unreachable or silent is tried again after 0.1 s, then twice as long up to 2 s, until
  // nothing has moved for this long. A chunk that gets through starts it anew.
  // It outlasts one request that times out (HttpClientOptions::timeout_ms), so that there is
  // always another attempt.
  int64_t patience_ms = 90000;
  // Asked before every chunk and while waiting; true: the transfer ends with kCancelled. It may
  // outlast a request under way, which its client's timeout bounds. Empty: never.
  std::function<bool()> cancelled;
};

// Downloads into store from the first source that has it, in chunks, resuming what is there;
// a source that fails or lies is skipped and the next one tried, all of them again while patience
// lasts and one of them may just be unreachable.
Status fetch_blob(BlobStore& store, const std::string& sha256, uint64_t bytes,
                  const std::vector<HttpClientOptions>& sources,
                  const TransferOptions& options = {});

// Uploads a file under its hash unless the server has it; resumes. Returns bytes actually sent.
Result<uint64_t> upload_blob(HttpClient& client, const std::string& sha256, const os::Path& file,
                             const TransferOptions& options = {});

}  // namespace weft::net
