#include "daemon/blob_cache.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "base/log.h"

namespace weft::daemon {

void trim_cache(net::BlobStore& blobs, uint64_t max_bytes) {
  std::vector<net::BlobFile> files = blobs.files();
  uint64_t total = 0;
  for (const net::BlobFile& file : files) total += file.bytes;
  std::sort(files.begin(), files.end(), [](const net::BlobFile& a, const net::BlobFile& b) {
    return std::tie(b.age_ms, a.name) < std::tie(a.age_ms, b.name);
  });
  for (const net::BlobFile& file : files) {
    if (total <= max_bytes) break;
    // One that was asked for since it was listed stays.
    auto removed = blobs.remove_if_older(file, file.age_ms);
    if (removed.ok() && *removed) total -= file.bytes;
    if (!removed.ok()) log_warning("blob cache: {}", removed.error().text());
  }
}

}  // namespace weft::daemon
