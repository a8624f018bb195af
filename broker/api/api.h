// The HTTP API of docs/api.md: a table of routes, one file a resource. Handlers run on the broker's
// loop, so they read the core's state without a lock; a long poll leaves a waiter behind.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "broker/core.h"
#include "net/http/http.h"
#include "net/identity/authority.h"

namespace weft::broker {

using Json = nlohmann::json;

struct ApiIdentity {
  std::string admin_token;
  std::string control_key;     // CURVE public key of the broker
  std::string advertise_host;  // where peers reach it; empty: as they dialled
  std::string join_host;       // put into join addresses
  uint16_t http_port = 0, control_port = 0;
};

// Requests that wait for news of a job. attempt(expired): true when it has answered.
class Waiters {
 public:
  using Attempt = std::function<bool(bool expired)>;
  // Refused beyond a bound (false): the caller answers at once.
  bool add(const std::string& job, int64_t deadline_ms, Attempt attempt);
  void news(const std::string& job);
  void tick(int64_t now_ms);
  void drop_all();

 private:
  struct Waiter {
    std::string job;
    int64_t deadline_ms = 0;
    Attempt attempt;
  };
  std::vector<Waiter> waiters_;
};

// Any thread. The certificate is verified by the server; whether the peer was removed since is not.
bool bearer_is(const net::HttpRequest& request, const std::string& token);
bool has_peer_certificate(const net::HttpRequest& request);

enum class Access { kAnyone, kUser, kPeer, kUserOrPeer };

struct Call {
  const net::HttpRequest& request;
  std::string id;    // the {id} of the path
  std::string peer;  // the caller, on peer routes
};

class Api {
 public:
  Api(Core& core, const net::Authority& authority, ApiIdentity identity)
      : core_(core), authority_(authority), identity_(std::move(identity)) {}

  // Answers a request, now or later. Blob routes are not here: see authorize_blob.
  void handle(const net::HttpRequest& request, net::HttpReply reply);
  // nullopt: allowed.
  Status authorize_blob(const net::HttpRequest& request) const;
  Waiters& waiters() { return waiters_; }
  // Random identifiers come from the world outside.
  std::function<std::string(size_t bytes)> random_hex;

 private:
  friend struct Routes;
  using Handler = void (Api::*)(const Call&, const net::HttpReply&);
  struct Route {
    const char* method;
    const char* pattern;
    Access access;
    Handler handler;
  };
  static const std::vector<Route>& routes();

  Result<std::string> check_access(const net::HttpRequest& request, Access access) const;
  bool is_user(const net::HttpRequest& request) const;
  Result<std::string> peer_of(const net::HttpRequest& request) const;

  void get_livez(const Call& call, const net::HttpReply& reply);
  void get_readyz(const Call& call, const net::HttpReply& reply);
  void get_metrics(const Call& call, const net::HttpReply& reply);
  void get_cluster(const Call& call, const net::HttpReply& reply);
  void post_invite(const Call& call, const net::HttpReply& reply);
  void post_join(const Call& call, const net::HttpReply& reply);
  void post_certificate(const Call& call, const net::HttpReply& reply);
  void get_peers(const Call& call, const net::HttpReply& reply);
  void get_peer(const Call& call, const net::HttpReply& reply);
  void drain_peer(const Call& call, const net::HttpReply& reply);
  void delete_peer(const Call& call, const net::HttpReply& reply);
  void get_links(const Call& call, const net::HttpReply& reply);
  void post_plan(const Call& call, const net::HttpReply& reply);
  void post_job(const Call& call, const net::HttpReply& reply);
  void get_jobs(const Call& call, const net::HttpReply& reply);
  void get_job(const Call& call, const net::HttpReply& reply);
  void delete_job(const Call& call, const net::HttpReply& reply);
  void cancel_job(const Call& call, const net::HttpReply& reply);
  void resume_job(const Call& call, const net::HttpReply& reply);
  void get_events(const Call& call, const net::HttpReply& reply);
  void get_job_metrics(const Call& call, const net::HttpReply& reply);
  void get_logs(const Call& call, const net::HttpReply& reply);
  void get_explain(const Call& call, const net::HttpReply& reply);
  void get_checkpoints(const Call& call, const net::HttpReply& reply);

  Result<Json> join(const Json& body);
  Result<Json> certify(const Call& call, const Json& body);
  Result<std::string> invited_peer(const std::string& token, const std::string& fingerprint,
                                   std::string& use_token);
  // A random id that is not in use.
  template <typename Used>
  std::string fresh_id(const char* prefix, Used used) const {
    for (;;) {
      std::string id = prefix + random_hex(4);
      if (!used(id)) return id;
    }
  }
  Result<std::string> find_job(const std::string& id_or_name) const;
  Json peer_json(const Peer& peer) const;
  Json measured_json(const Peer& peer) const;
  Json job_json(const Job& job);
  Result<Json> events_page(const std::string& job, int64_t after);
  Result<Json> metrics_page(const std::string& job, int64_t after);
  using Page = std::function<Result<Json>()>;
  void answer_or_wait(const Call& call, const std::string& job, const char* list, Page page,
                      const net::HttpReply& reply);

  Core& core_;
  const net::Authority& authority_;
  ApiIdentity identity_;
  Waiters waiters_;
};

// What is known of a peer's line; null: nothing.
Json line_json(const LinkBook& book, const std::string& peer);

// ---- helpers of the resource files -------------------------------------------------------------
net::HttpResponse json_response(const Json& body, int status = 200);
void answer(const net::HttpReply& reply, Result<Json> result, int status = 200);
// A request's body: bounded in depth, kInvalid if it is no JSON.
Result<Json> parse_json(const std::string& text);
// The body as an object whose fields are all among `known`; an empty body is {}.
Result<Json> parse_body(const net::HttpRequest& request, std::initializer_list<const char*> known);
Result<std::string> text_field(const Json& body, const char* name, size_t max_bytes);
Result<int64_t> integer_field(const Json& body, const char* name, int64_t otherwise, int64_t min,
                              int64_t max);
Result<int64_t> query_integer(const net::HttpRequest& request, const char* name, int64_t otherwise);

}  // namespace weft::broker
