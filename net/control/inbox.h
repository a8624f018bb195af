// The receiving half of reliable delivery: decides for each message of one sender whether it is
// handled now. Since messages are handled in order, the last id of each session is all the memory
// that once-only handling needs. Pure. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::net {

enum class Admission {
  kNew,        // handle, then acknowledge
  kDuplicate,  // acknowledge only
  kEarly,      // one before it is missing: ignore, the sender repeats both
};

class Inbox {
 public:
  // id > 0. Records the message as handled when it says kNew.
  Admission check(uint64_t session, uint64_t id, uint64_t previous);

 private:
  // A sender has one session per start; messages of the one before may still be under way.
  static constexpr size_t kSessions = 4;
  struct Stream {
    uint64_t session = 0, last = 0;
  };
  std::vector<Stream> streams_;  // the latest at the end
};

}  // namespace weft::net
