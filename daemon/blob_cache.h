// The blobs a peer keeps, bounded on disk.
#pragma once

#include <cstdint>

#include "net/blob/blob_store.h"

namespace weft::daemon {

// Removes the least recently used files, partial downloads included, until at most max_bytes
// remain. On the transfer thread: nothing is being downloaded meanwhile.
void trim_cache(net::BlobStore& blobs, uint64_t max_bytes);

}  // namespace weft::daemon
