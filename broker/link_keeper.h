// LinkKeeper: the book of links (links/link_book.h) inside the broker. It follows the peers of the
// state, sends what the book wants measured, believes answers within bounds, and stores a row for
// each direction, so that a restart forgets nothing. What the messages of running jobs say of a way
// counts, too. All calls on the broker's loop.
//
// Switched off it asks for nothing; what work tells counts, and what was known before while it is
// not too old.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "broker/coordinator/state.h"
#include "broker/links/link_book.h"
#include "broker/probe.h"
#include "broker/store/store.h"
#include "broker/work_traffic.h"
#include "net/proto/control.pb.h"

namespace weft::broker {

class LinkKeeper {
 public:
  // Store and metrics outlive it. asks: peers are asked to measure.
  LinkKeeper(Store& store, Probe& probe, bool asks) : store_(store), probe_(probe), asks_(asks) {}

  // Once, after the peers were loaded. A row that cannot be read is measured again.
  Status load(const State& state, int64_t now_ms);
  // Sends what is due. An error is the store's.
  using Send = std::function<void(const std::string& peer, proto::BrokerMessage, int32_t ttl_ms)>;
  Status tick(const State& state, int64_t now_ms, const Send& send);
  // What a peer answered; what nobody asked it for changes nothing. An error is the store's.
  Status add(const std::string& peer, const ProbeResult& result, int64_t now_ms);
  // What real work says of some ways. An error is the store's.
  Status add_traffic(const State& state, const std::vector<CarriedWay>& ways, int64_t now_ms);

  // The book with every peer of the state as it is now, also one that said hello a moment ago.
  const LinkBook& book(const State& state) {
    follow(state);
    return book_;
  }
  bool awaited(const std::vector<const Peer*>& peers) const;
  // A plan sends that way: it is measured itself, as soon as both are idle.
  void depend_on(const std::vector<LinkKey>& ways) { book_.depend_on(ways); }

 private:
  void follow(const State& state);
  Status store_ways(const std::vector<LinkKey>& ways, int64_t now_ms);

  Store& store_;
  Probe& probe_;
  bool asks_;
  LinkBook book_;
  uint64_t followed_version_ = 0;  // of the state
  size_t followed_peers_ = 0;
  int64_t next_trim_ms_ = 0;
};

}  // namespace weft::broker
