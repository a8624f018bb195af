// Invitations, joining, certificates of assignments.
#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "broker/api/api.h"

namespace weft::broker {
namespace {

constexpr int64_t kMaxTtlS = 30 * 86400;
constexpr int64_t kMaxUses = 10000;
constexpr int64_t kPeerDays = 365, kWorkerDays = 30;
constexpr int64_t kDayMs = int64_t{86400} * 1000;

Error denied(std::string message) {
  return make_error(Code::kDenied, std::move(message), "ask for a new address: weft peer invite");
}

bool printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 32 && c != 127; });
}

}  // namespace

void Api::post_invite(const Call& call, const net::HttpReply& reply) {
  answer(reply, [&]() -> Result<Json> {
    WEFT_TRY(const Json body, parse_body(call.request, {"ttl_s", "uses"}));
    WEFT_TRY(const int64_t ttl_s, integer_field(body, "ttl_s", 3600, 1, kMaxTtlS));
    WEFT_TRY(const int64_t uses, integer_field(body, "uses", 1, 1, kMaxUses));
    const std::string token = random_hex(24);
    Invite invite{"t-" + random_hex(4), sha256_hex(std::string_view(token)),
                  core_.now_ms() + ttl_s * 1000, uses, 0};
    WEFT_TRY_STATUS(core_.store().put_invite(invite));
    const std::string address = net::to_text(net::JoinAddress{
        identity_.join_host, identity_.http_port, authority_.fingerprint(), token});
    return Json{{"address", address},
                {"token_id", invite.token_id},
                {"expires_ms", invite.expires_ms},
                {"uses", uses}};
  }());
}

// The peer id this token gives this key; use_token: the token to count, if this is its first use.
Result<std::string> Api::invited_peer(const std::string& token, const std::string& fingerprint,
                                      std::string& use_token) {
  WEFT_TRY(const auto invite, core_.store().invite_by_hash(sha256_hex(std::string_view(token))));
  if (!invite) return denied("the token of the join address is wrong");
  if (core_.now_ms() >= invite->expires_ms) return denied("the join address has expired");
  WEFT_TRY(const std::string before, core_.store().invited_peer(invite->token_id, fingerprint));
  if (!before.empty()) {
    if (core_.state().peers.contains(before)) return before;
    return denied(fmt::format("peer {} was removed from the cluster", before));
  }
  if (invite->used >= invite->uses) {
    return denied(fmt::format("the join address was used {} time{} already, as often as it may",
                              invite->used, invite->used == 1 ? "" : "s"));
  }
  use_token = invite->token_id;
  for (const auto& [id, peer] : core_.state().peers) {
    if (peer.key_fingerprint == fingerprint) return id;
  }
  return fresh_id("p-", [&](const std::string& id) {
    return core_.state().peers.contains(id) || core_.state().revoked.contains(id);
  });
}

Result<Json> Api::join(const Json& body) {
  WEFT_TRY(const std::string token, text_field(body, "token", 256));
  WEFT_TRY(const std::string request, text_field(body, "request_pem", 16384));
  WEFT_TRY(const std::string curve, text_field(body, "curve_public", 40));
  WEFT_TRY(const std::string name, text_field(body, "name", 64));
  if (curve.size() != 40 || !printable(curve)) {
    return make_error(Code::kInvalid, "curve_public is no CURVE key of 40 characters");
  }
  if (!printable(name)) return make_error(Code::kInvalid, "name holds control characters");
  WEFT_TRY(const std::string fingerprint, net::public_key_fingerprint(request));
  std::string use_token;
  WEFT_TRY(const std::string id, invited_peer(token, fingerprint, use_token));
  for (const auto& [other, peer] : core_.state().peers) {
    if (other != id && peer.curve_public == curve) {
      return make_error(Code::kExists, "another peer has this CURVE key",
                        "give each peer a state folder of its own");
    }
  }
  net::CertificateInfo info;
  info.subject = id;
  info.kind = "peer";
  info.not_after_ms = core_.now_ms() + kPeerDays * kDayMs;
  WEFT_TRY(const std::string certificate, authority_.issue(request, info, core_.now_ms()));
  WEFT_TRY_STATUS(core_.admit(PeerJoined{id, name, curve, fingerprint}, [&]() -> Status {
    return use_token.empty() ? Status() : core_.store().use_invite(use_token, fingerprint, id);
  }));
  return Json{{"peer", id},
              {"certificate_pem", certificate},
              {"ca_pem", authority_.ca_pem()},
              {"control_host", identity_.advertise_host},
              {"control_port", identity_.control_port},
              {"control_key", identity_.control_key}};
}

void Api::post_join(const Call& call, const net::HttpReply& reply) {
  auto body = parse_body(call.request, {"token", "request_pem", "curve_public", "name"});
  answer(reply, body.ok() ? join(body.value()) : Result<Json>(body.error()));
}

Result<Json> Api::certify(const Call& call, const Json& body) {
  WEFT_TRY(const std::string job, text_field(body, "job", 64));
  WEFT_TRY(const int64_t epoch, integer_field(body, "epoch", -1, 0, UINT32_MAX));
  WEFT_TRY(const int64_t stage, integer_field(body, "stage", -1, 0, INT32_MAX));
  WEFT_TRY(const std::string request, text_field(body, "request_pem", 16384));
  const auto& held = core_.state().peers.at(call.peer).assignment;
  if (!held || held->stopping ||
      !held->is(job, static_cast<uint32_t>(epoch), static_cast<int32_t>(stage))) {
    return make_error(Code::kDenied,
                      fmt::format("peer {} does not hold stage {} of job {} epoch {}", call.peer,
                                  stage, job, epoch));
  }
  net::CertificateInfo info;
  info.subject = call.peer;
  info.kind = "worker";
  info.job = job;
  info.epoch = static_cast<uint32_t>(epoch);
  info.stage = static_cast<int32_t>(stage);
  info.not_after_ms = core_.now_ms() + kWorkerDays * kDayMs;
  WEFT_TRY(const std::string certificate, authority_.issue(request, info, core_.now_ms()));
  return Json{{"certificate_pem", certificate}, {"ca_pem", authority_.ca_pem()}};
}

void Api::post_certificate(const Call& call, const net::HttpReply& reply) {
  auto body = parse_body(call.request, {"job", "epoch", "stage", "request_pem"});
  answer(reply, body.ok() ? certify(call, body.value()) : Result<Json>(body.error()));
}

}  // namespace weft::broker
