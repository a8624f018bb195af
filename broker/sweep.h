// Sweep: which files of the blob store nobody needs. Left behind by dry runs, refused submissions,
// shards of fenced epochs and transfers that were given up. Pure.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "net/blob/blob_store.h"

namespace weft::broker {

// A blob may be uploaded long before the submission that names it.
inline constexpr int64_t kLeastSweepAgeMs = int64_t{24} * 3600 * 1000;

// Files no job references that nobody wrote or asked for within least_age_ms.
std::vector<net::BlobFile> files_to_sweep(const std::vector<net::BlobFile>& files,
                                          const std::set<std::string>& referenced,
                                          int64_t least_age_ms);

}  // namespace weft::broker
