// Several TlsEndpoints of one job on loopback, links optionally through a LinkGate.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "net/gate/link_gate.h"
#include "net/tls/tls_endpoint.h"
#include "tests/unit/net/tls_certificates.h"

namespace weft::net::testing {

inline const TestCa& shared_ca() {
  static const TestCa ca;
  return ca;
}

inline std::string peer_name(int32_t stage) {
  return "peer-" + std::to_string(stage);
}

inline TlsEndpointOptions tls_options(int32_t stage, const std::vector<EdgeLink>& edges,
                                      const std::vector<int32_t>& control = {}) {
  TlsEndpointOptions options;
  options.job = "job-a";
  options.stage = stage;
  options.peer = peer_name(stage);
  options.listen_host = "127.0.0.1";
  const Paths paths = shared_ca().issue(options.peer, options.job, options.epoch, stage);
  options.certificate_path = paths.certificate;
  options.key_path = paths.key;
  options.ca_path = paths.ca;
  options.edges = edges;
  for (int32_t other : control) {
    if (other != stage) options.control_neighbours.push_back(other);
  }
  options.link_timeout_ms = 4000;
  options.ping_interval_ms = 200;
  return options;
}

inline Neighbour neighbour(int32_t stage, uint16_t port) {
  return {stage, peer_name(stage), "127.0.0.1", port};
}

// Connects all at once, each from a thread of its own as separate processes would.
inline std::vector<Status> connect_all(
    const std::vector<TlsEndpoint*>& endpoints,
    const std::function<std::vector<Neighbour>(size_t)>& neighbours,
    const std::function<int32_t(size_t)>& timeout_ms) {
  std::vector<Status> results(endpoints.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < endpoints.size(); ++i) {
    threads.emplace_back(
        [&, i] { results[i] = endpoints[i]->connect(neighbours(i), timeout_ms(i)); });
  }
  for (auto& thread : threads) thread.join();
  return results;
}

class TlsCluster {
 public:
  using Adjust = std::function<void(TlsEndpointOptions&)>;
  TlsCluster(int32_t stages, const std::vector<EdgeLink>& edges,
             const std::vector<int32_t>& control = {}, const Adjust& adjust = {},
             const LinkGateOptions* gate = nullptr) {
    for (int32_t stage = 0; stage < stages; ++stage) {
      auto options = tls_options(stage, edges, control);
      if (adjust) adjust(options);
      auto endpoint = TlsEndpoint::listen(options);
      EXPECT_TRUE(endpoint.ok()) << endpoint.error().text();
      endpoints_.push_back(std::move(endpoint).value());
    }
    std::vector<TlsEndpoint*> all;
    for (const auto& e : endpoints_) all.push_back(e.get());
    // Whoever dials stage s goes through gate s.
    for (const auto& e : endpoints_) {
      if (!gate) break;
      LinkGateOptions options = *gate;
      options.target_port = e->port();
      gates_.push_back(std::move(LinkGate::start(options)).value());
    }
    const auto results = connect_all(
        all,
        [&](size_t) {
          std::vector<Neighbour> list;
          for (int32_t s = 0; s < stages; ++s) {
            const auto i = static_cast<size_t>(s);
            list.push_back(neighbour(s, gate ? gates_[i]->port() : endpoints_[i]->port()));
          }
          return list;
        },
        [](size_t) { return 8000; });
    for (const Status& status : results) {
      EXPECT_TRUE(status.ok()) << status.error().text();
    }
  }

  TlsEndpoint& at(int32_t stage) { return *endpoints_[static_cast<size_t>(stage)]; }
  LinkGate& gate(int32_t stage) { return *gates_[static_cast<size_t>(stage)]; }
  void stop(int32_t stage) { endpoints_[static_cast<size_t>(stage)].reset(); }

 private:
  std::vector<std::unique_ptr<LinkGate>> gates_;
  std::vector<std::unique_ptr<TlsEndpoint>> endpoints_;
};

}  // namespace weft::net::testing
