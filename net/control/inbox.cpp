#include "net/control/inbox.h"

#include <algorithm>

namespace weft::net {

Admission Inbox::check(uint64_t session, uint64_t id, uint64_t previous) {
  auto stream = std::find_if(streams_.begin(), streams_.end(),
                             [&](const Stream& s) { return s.session == session; });
  const uint64_t last = stream == streams_.end() ? 0 : stream->last;
  if (id <= last) return Admission::kDuplicate;
  if (previous > last) return Admission::kEarly;
  if (stream == streams_.end()) {
    if (streams_.size() >= kSessions) streams_.erase(streams_.begin());
    streams_.push_back({session, id});
  } else {
    stream->last = id;
  }
  return Admission::kNew;
}

}  // namespace weft::net
