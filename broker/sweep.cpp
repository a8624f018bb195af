#include "broker/sweep.h"

namespace weft::broker {

std::vector<net::BlobFile> files_to_sweep(const std::vector<net::BlobFile>& files,
                                          const std::set<std::string>& referenced,
                                          int64_t least_age_ms) {
  std::vector<net::BlobFile> stale;
  for (const net::BlobFile& file : files) {
    if (file.age_ms < least_age_ms) continue;
    if (file.complete && referenced.contains(file.name)) continue;
    stale.push_back(file);
  }
  return stale;
}

}  // namespace weft::broker
