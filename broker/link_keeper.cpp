#include "broker/link_keeper.h"

#include "base/log.h"
#include "broker/coordinator/coordinator.h"
#include "broker/messages.h"

namespace weft::broker {
namespace {

// A probe that waited longer for its peer would meet another network than was asked about.
constexpr int32_t kProbeTtlMs = 10000;
constexpr int64_t kTrimMs = 3600000;

const char* outcome_name(ProbeResult::Outcome outcome) {
  switch (outcome) {
    case ProbeResult::Outcome::kMeasured:
      return "measured";
    case ProbeResult::Outcome::kBusy:
      return "busy";
    default:
      return "unreachable";
  }
}

LinkPeer link_peer(const Peer& peer) {
  const Capabilities& c = peer.capabilities;
  return {peer.id,
          c.advertise_host,
          usable(peer),
          peer.assignment.has_value(),
          peer.phase != PeerPhase::kGone && c.blob_port != 0 && !c.advertise_host.empty(),
          peer.assignment ? peer.assignment->job : ""};
}

}  // namespace

// Peers that are gone stay in the book: what is known of them ages, and they may come back.
void LinkKeeper::follow(const State& state) {
  if (state.idle_version == followed_version_ && state.peers.size() == followed_peers_) return;
  followed_version_ = state.idle_version;
  followed_peers_ = state.peers.size();
  std::vector<LinkPeer> peers;
  peers.reserve(state.peers.size());
  for (const auto& [id, peer] : state.peers) peers.push_back(link_peer(peer));
  book_.set_peers(peers);
}

Status LinkKeeper::load(const State& state, int64_t now_ms) {
  // An answer to the broker that ran before must not be taken for one to this.
  LinkOptions options;
  options.first_task = (static_cast<uint64_t>(now_ms) << 20) + 1;
  if (!asks_) options.max_running = 0;
  book_ = LinkBook(options);
  follow(state);
  WEFT_TRY_STATUS(store_.remove_links_before(now_ms - options.max_age_ms));
  WEFT_TRY(const auto rows, store_.links());
  for (const LinkRow& row : rows) {
    const bool known = state.peers.contains(row.from) && state.peers.contains(row.to);
    // The clock may have been set back: a row of the future would never age.
    if (known && row.time_ms <= now_ms) book_.restore({row.from, row.to}, row.record);
  }
  probe_.links_known(book_.directions());
  if (!rows.empty()) log_info("{} measured links are known", book_.directions());
  return {};
}

Status LinkKeeper::tick(const State& state, int64_t now_ms, const Send& send) {
  if (!book_.due(now_ms)) return {};
  follow(state);
  for (const ProbeTask& task : book_.next(now_ms)) {
    auto probe = probe_message(task, state.peers);
    if (!probe.ok()) {  // it said Hello again, without a port
      ProbeResult nobody{task.id, ProbeResult::Outcome::kUnreachable, "", {}};
      book_.add(task.prober, nobody, now_ms);
      continue;
    }
    proto::BrokerMessage message;
    *message.mutable_probe() = std::move(probe).value();
    probe_.probe_sent();
    send(task.prober, std::move(message), kProbeTtlMs);
  }
  probe_.links_known(book_.directions());
  if (now_ms < next_trim_ms_) return {};
  next_trim_ms_ = now_ms + kTrimMs;
  return store_.remove_links_before(now_ms - book_.options().max_age_ms);
}

bool LinkKeeper::awaited(const std::vector<const Peer*>& peers) const {
  std::vector<LinkPeer> asked;
  for (const Peer* peer : peers) asked.push_back(link_peer(*peer));
  return book_.awaited(asked);
}

Status LinkKeeper::add(const std::string& peer, const ProbeResult& result, int64_t now_ms) {
  const auto changed = book_.add(peer, result, now_ms);
  const bool refused = result.outcome == ProbeResult::Outcome::kMeasured && changed.empty();
  probe_.probe_answered(refused ? "refused" : outcome_name(result.outcome));
  return store_ways(changed, now_ms);
}

Status LinkKeeper::add_traffic(const State& state, const std::vector<CarriedWay>& ways,
                               int64_t now_ms) {
  std::vector<LinkKey> changed;
  for (const auto& [way, carried] : ways) {
    if (!book_.knows(way.first) || !book_.knows(way.second)) follow(state);  // came a moment ago
    const auto news = book_.add_traffic(way, carried, now_ms);
    changed.insert(changed.end(), news.begin(), news.end());
  }
  probe_.traffic_told(ways.empty() ? "refused" : changed.empty() ? "known" : "news");
  probe_.links_known(book_.directions());
  return store_ways(changed, now_ms);
}

Status LinkKeeper::store_ways(const std::vector<LinkKey>& ways, int64_t now_ms) {
  if (ways.empty()) return {};
  return store_.batch([&]() -> Status {
    for (const LinkKey& way : ways) {
      WEFT_TRY_STATUS(store_.put_link({way.first, way.second, now_ms, book_.row(way)}));
    }
    return {};
  });
}

}  // namespace weft::broker
