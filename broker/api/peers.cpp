// /api/v1/peers
#include <fmt/format.h>

#include "broker/api/api.h"
#include "broker/coordinator/planner_inputs.h"

namespace weft::broker {
namespace {

Error no_peer(const std::string& id) {
  return make_error(Code::kNotFound, fmt::format("there is no peer {}", id),
                    "see `weft peer list`");
}

}  // namespace

Json Api::peer_json(const Peer& peer) const {
  const Capabilities& c = peer.capabilities;
  Json assignment = nullptr;
  if (peer.assignment) {
    assignment = {{"job", peer.assignment->job}, {"stage", peer.assignment->stage}};
  }
  const Json free = peer.free_memory_bytes > 0 ? Json(peer.free_memory_bytes) : Json(nullptr);
  return {{"id", peer.id},
          {"name", peer.name},
          {"state", phase_name(peer.phase)},
          {"host", c.host},
          {"cores", c.cores},
          {"memory_bytes", memory_bytes_of(peer)},
          {"free_memory_bytes", free},
          {"device", c.device},
          {"device_name", c.device_name},
          {"version", c.version},
          {"joined_ms", peer.joined_ms},
          {"last_seen_ms", peer.last_seen_ms},
          {"assignment", std::move(assignment)},
          {"spare", peer.phase == PeerPhase::kIdle},
          {"blobs", core_.blobs_at(peer.id)}};
}

void Api::get_peers(const Call&, const net::HttpReply& reply) {
  Json peers = Json::array();
  for (const auto& [id, peer] : core_.state().peers) peers.push_back(peer_json(peer));
  answer(reply, Json{{"peers", std::move(peers)}});
}

// peer_json with what is too much for a list.
Json Api::measured_json(const Peer& peer) const {
  Json json = peer_json(peer);
  json["profile"] = peer.profile ? job::profile_to_json(*peer.profile) : Json(nullptr);
  json["line"] = line_json(core_.links(), peer.id);
  const double planned = planned_correction(peer, core_.lessons_for({&peer}));
  json["correction"] = {
      {"factor", peer.correction.factor}, {"steps", peer.correction.steps}, {"planned", planned}};
  return json;
}

void Api::get_peer(const Call& call, const net::HttpReply& reply) {
  const auto found = core_.state().peers.find(call.id);
  answer(reply, found == core_.state().peers.end() ? Result<Json>(no_peer(call.id))
                                                   : Result<Json>(measured_json(found->second)));
}

void Api::drain_peer(const Call& call, const net::HttpReply& reply) {
  answer(reply, [&]() -> Result<Json> {
    WEFT_TRY_STATUS(core_.command(DrainPeer{call.id}));
    return peer_json(core_.state().peers.at(call.id));
  }());
}

void Api::delete_peer(const Call& call, const net::HttpReply& reply) {
  if (const Status done = core_.command(RemovePeer{call.id}); !done.ok()) {
    reply(net::problem_response(done.error()));
    return;
  }
  net::HttpResponse response;
  response.status = 204;
  reply(std::move(response));
}

}  // namespace weft::broker
