#include "net/control/inbox.h"

#include <algorithm>

namespace weft::net {

Arrival Inbox::check(uint64_t session, uint64_t id, uint64_t previous) {
  auto stream = std::find_if(streams_.begin(), streams_.end(),
                             [&](const Stream& s) { return s.session == session; });
  const uint64_t last = stream == streams_.end() ? 0 : stream->last;
  if (id <= last) return Arrival::kDuplicate;
  if (previous > last) return Arrival::kEarly;
  if (stream == streams_.end()) {
    if (streams_.size() >= kSessions) streams_.erase(streams_.begin());
    streams_.push_back({session, id});
  } else {
    stream->last = id;
  }
  return Arrival::kNew;
}

}  // namespace weft::net
