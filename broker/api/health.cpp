// GET /livez, /readyz, /metrics, /api/v1/cluster.
#include "base/version.h"
#include "broker/api/api.h"

namespace weft::broker {

void Api::get_livez(const Call&, const net::HttpReply& reply) {
  reply(json_response({{"status", "ok"}}));
}

void Api::get_readyz(const Call&, const net::HttpReply& reply) {
  if (core_.store_healthy()) {
    reply(json_response({{"status", "ok"}}));
  } else {
    answer(reply, make_error(Code::kUnavailable, "the broker's store refuses writes",
                             "check the disk that holds its state folder"));
  }
}

void Api::get_metrics(const Call&, const net::HttpReply& reply) {
  net::HttpResponse response;
  response.content_type = "text/plain; version=0.0.4";
  response.body = core_.probe().text(core_.state());
  reply(std::move(response));
}

void Api::get_cluster(const Call&, const net::HttpReply& reply) {
  answer(reply, Json{{"version", kVersion},
                     {"peers", core_.state().peers.size()},
                     {"jobs", core_.state().jobs.size()},
                     {"ca_fingerprint", authority_.fingerprint()},
                     {"control_port", identity_.control_port},
                     {"http_port", identity_.http_port},
                     {"advertise_host", identity_.advertise_host}});
}

}  // namespace weft::broker
