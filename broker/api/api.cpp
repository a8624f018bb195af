#include "broker/api/api.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/hash.h"

#include "job/json_read.h"

namespace weft::broker {
namespace {

constexpr size_t kMaxWaiters = 1000;

// Matches "/api/v1/jobs/{id}/events"; id: what stands for {id}.
bool matches(std::string_view pattern, std::string_view path, std::string& id) {
  const size_t open = pattern.find("{id}");
  if (open == std::string_view::npos) return pattern == path;
  const std::string_view head = pattern.substr(0, open), tail = pattern.substr(open + 4);
  if (!path.starts_with(head) || path.size() <= head.size() + tail.size()) return false;
  if (!path.ends_with(tail)) return false;
  const std::string_view found = path.substr(head.size(), path.size() - head.size() - tail.size());
  if (found.find('/') != std::string_view::npos || found.size() > 256) return false;
  id = std::string(found);
  return true;
}

}  // namespace

const std::vector<Api::Route>& Api::routes() {
  static const std::vector<Route> kRoutes = {
      {"GET", "/livez", Access::kAnyone, &Api::get_livez},
      {"GET", "/readyz", Access::kAnyone, &Api::get_readyz},
      {"GET", "/metrics", Access::kUser, &Api::get_metrics},
      {"GET", "/api/v1/cluster", Access::kUser, &Api::get_cluster},
      {"POST", "/api/v1/invites", Access::kUser, &Api::post_invite},
      {"POST", "/api/v1/join", Access::kAnyone, &Api::post_join},
      {"POST", "/api/v1/assignments/certificate", Access::kPeer, &Api::post_certificate},
      {"GET", "/api/v1/peers", Access::kUser, &Api::get_peers},
      {"GET", "/api/v1/peers/{id}", Access::kUser, &Api::get_peer},
      {"POST", "/api/v1/peers/{id}/drain", Access::kUser, &Api::drain_peer},
      {"DELETE", "/api/v1/peers/{id}", Access::kUser, &Api::delete_peer},
      {"GET", "/api/v1/links", Access::kUser, &Api::get_links},
      {"POST", "/api/v1/plans", Access::kUser, &Api::post_plan},
      {"POST", "/api/v1/jobs", Access::kUser, &Api::post_job},
      {"GET", "/api/v1/jobs", Access::kUser, &Api::get_jobs},
      {"GET", "/api/v1/jobs/{id}", Access::kUser, &Api::get_job},
      {"DELETE", "/api/v1/jobs/{id}", Access::kUser, &Api::delete_job},
      {"POST", "/api/v1/jobs/{id}/cancel", Access::kUser, &Api::cancel_job},
      {"POST", "/api/v1/jobs/{id}/resume", Access::kUser, &Api::resume_job},
      {"GET", "/api/v1/jobs/{id}/events", Access::kUser, &Api::get_events},
      {"GET", "/api/v1/jobs/{id}/metrics", Access::kUser, &Api::get_job_metrics},
      {"GET", "/api/v1/jobs/{id}/logs", Access::kUser, &Api::get_logs},
      {"GET", "/api/v1/jobs/{id}/explain", Access::kUser, &Api::get_explain},
      {"GET", "/api/v1/jobs/{id}/checkpoints", Access::kUser, &Api::get_checkpoints},
  };
  return kRoutes;
}

void Api::handle(const net::HttpRequest& request, net::HttpReply reply) {
  const net::HttpReply counted = [this, reply](net::HttpResponse response) {
    core_.probe().request_served(response.status);
    reply(std::move(response));
  };
  bool path_known = false;
  for (const Route& route : routes()) {
    Call call{request, "", ""};
    if (!matches(route.pattern, request.path, call.id)) continue;
    path_known = true;
    if (request.method != route.method) continue;
    auto caller = check_access(request, route.access);
    if (!caller.ok()) {
      counted(net::problem_response(caller.error()));
      return;
    }
    call.peer = std::move(caller).value();
    (this->*route.handler)(call, counted);
    return;
  }
  net::HttpResponse response = net::problem_response(
      make_error(path_known ? Code::kInvalid : Code::kNotFound,
                 fmt::format("{} {} is no route of this API", request.method, request.path),
                 "see docs/api.md"));
  if (path_known) response.status = 405;
  counted(std::move(response));
}

// ---- who calls ---------------------------------------------------------------------------------

bool bearer_is(const net::HttpRequest& request, const std::string& token) {
  const auto header = request.headers.find("authorization");
  if (header == request.headers.end() || token.empty()) return false;
  constexpr std::string_view kScheme = "Bearer ";
  if (!header->second.starts_with(kScheme)) return false;
  // Digests have one length whatever was sent, so the comparison takes one time.
  const std::string given = sha256_hex(std::string_view(header->second).substr(kScheme.size()));
  const std::string wanted = sha256_hex(std::string_view(token));
  return CRYPTO_memcmp(given.data(), wanted.data(), wanted.size()) == 0;
}

bool has_peer_certificate(const net::HttpRequest& request) {
  if (request.client_certificate_pem.empty()) return false;
  const auto info = net::read_certificate(request.client_certificate_pem);
  return info.ok() && info->kind == "peer";
}

bool Api::is_user(const net::HttpRequest& request) const {
  return bearer_is(request, identity_.admin_token);
}

Result<std::string> Api::peer_of(const net::HttpRequest& request) const {
  if (request.client_certificate_pem.empty()) {
    return make_error(Code::kDenied, "this route needs a peer's client certificate",
                      "join the cluster: weftd join ADDRESS");
  }
  WEFT_TRY(const net::CertificateInfo info, net::read_certificate(request.client_certificate_pem));
  WEFT_TRY(const std::string key, net::public_key_fingerprint(request.client_certificate_pem));
  const auto found = core_.state().peers.find(info.subject);
  if (info.kind != "peer" || found == core_.state().peers.end() ||
      found->second.key_fingerprint != key) {
    return make_error(Code::kDenied,
                      fmt::format("the certificate of {} is not that of a peer of this cluster, or "
                                  "it was revoked",
                                  info.subject),
                      "join again with a new invitation: weft peer invite");
  }
  return info.subject;
}

Result<std::string> Api::check_access(const net::HttpRequest& request, Access access) const {
  if (access == Access::kAnyone) return std::string();
  if (access == Access::kPeer) return peer_of(request);
  if (is_user(request)) return std::string();
  if (access == Access::kUserOrPeer && !request.client_certificate_pem.empty()) {
    return peer_of(request);
  }
  return make_error(Code::kDenied, "the bearer token is missing or wrong",
                    "log in with the token of the broker's admin.token: weft login");
}

Status Api::authorize_blob(const net::HttpRequest& request) const {
  WEFT_TRY([[maybe_unused]] const std::string caller, check_access(request, Access::kUserOrPeer));
  return {};
}

// ---- waiting -----------------------------------------------------------------------------------

bool Waiters::add(const std::string& job, int64_t deadline_ms, Attempt attempt) {
  if (waiters_.size() >= kMaxWaiters) return false;
  waiters_.push_back({job, deadline_ms, std::move(attempt)});
  return true;
}

void Waiters::news(const std::string& job) {
  std::erase_if(waiters_, [&](Waiter& w) { return w.job == job && w.attempt(false); });
}

void Waiters::tick(int64_t now_ms) {
  std::erase_if(waiters_, [&](Waiter& w) { return now_ms >= w.deadline_ms && w.attempt(true); });
}

void Waiters::drop_all() {
  for (Waiter& waiter : waiters_) waiter.attempt(true);
  waiters_.clear();
}

// ---- helpers -----------------------------------------------------------------------------------

net::HttpResponse json_response(const Json& body, int status) {
  net::HttpResponse response;
  response.status = status;
  response.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  return response;
}

void answer(const net::HttpReply& reply, Result<Json> result, int status) {
  reply(result.ok() ? json_response(result.value(), status)
                    : net::problem_response(result.error()));
}

Result<Json> parse_json(const std::string& text) {
  auto body = job::parse_json(text, "the request's body");
  if (body.ok()) return body;
  return make_error(Code::kInvalid, body.error().message, "see docs/api.md");
}

Result<Json> parse_body(const net::HttpRequest& request, std::initializer_list<const char*> known) {
  if (request.body.empty()) return Json(Json::object());
  WEFT_TRY(Json body, parse_json(request.body));
  if (!body.is_object()) {
    return make_error(Code::kInvalid, "the request's body is not a JSON object", "see docs/api.md");
  }
  for (const auto& [name, value] : body.items()) {
    const bool found = std::any_of(known.begin(), known.end(),
                                   [&](const char* candidate) { return name == candidate; });
    if (!found) {
      return make_error(Code::kInvalid, fmt::format("field {} is not known here", name),
                        "see docs/api.md");
    }
  }
  return body;
}

Result<std::string> text_field(const Json& body, const char* name, size_t max_bytes) {
  const auto found = body.find(name);
  if (found == body.end() || !found->is_string()) {
    return make_error(Code::kInvalid, fmt::format("field {} must be a string", name),
                      "see docs/api.md");
  }
  std::string text = found->get<std::string>();
  if (text.empty() || text.size() > max_bytes) {
    return make_error(Code::kInvalid, fmt::format("field {} must have 1 to {} bytes, it has {}",
                                                  name, max_bytes, text.size()));
  }
  return text;
}

Result<int64_t> integer_field(const Json& body, const char* name, int64_t otherwise, int64_t min,
                              int64_t max) {
  const auto found = body.find(name);
  if (found == body.end() || found->is_null()) return otherwise;
  const bool fits = found->is_number_integer() &&
                    !(found->is_number_unsigned() && found->get<uint64_t>() > INT64_MAX);
  if (!fits || found->get<int64_t>() < min || found->get<int64_t>() > max) {
    return make_error(Code::kInvalid,
                      fmt::format("field {} must be an integer from {} to {}", name, min, max));
  }
  return found->get<int64_t>();
}

Result<int64_t> query_integer(const net::HttpRequest& request, const char* name,
                              int64_t otherwise) {
  const auto found = request.query.find(name);
  if (found == request.query.end()) return otherwise;
  int64_t value = 0;
  const char* end = found->second.data() + found->second.size();
  const auto parsed = std::from_chars(found->second.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return make_error(Code::kInvalid,
                      fmt::format("query {} is no integer: {}", name, found->second.substr(0, 64)));
  }
  return value;
}

}  // namespace weft::broker
