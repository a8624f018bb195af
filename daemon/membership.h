// Membership: what a peer keeps of having joined a cluster, and the joining itself. The folder
// holds peer.key (0600), peer.pem, ca.pem, curve.key (0600) and membership.json.
#pragma once

#include <string>

#include "base/os/file.h"
#include "base/result.h"
#include "net/http/http.h"
#include "net/identity/authority.h"

namespace weft::daemon {

struct Membership {
  std::string peer;  // id the broker gave
  std::string certificate_pem, key_pem, ca_pem;
  net::CurveKeys curve;
  std::string broker_host;  // of the HTTP API
  uint16_t broker_port = 0;
  std::string control_host;
  uint16_t control_port = 0;
  std::string control_key_z85;

  // How this peer speaks to the broker's API: its own certificate, the cluster's CA.
  net::HttpClientOptions broker_client() const;
};

// kNotFound where the folder holds no membership: the error says how to join.
Result<Membership> load_membership(const os::Path& dir);

// Joins through HTTPS pinned by the address's fingerprint. Keys already in dir are reused, so an
// interrupted join may be repeated with the same token. Errors of the broker pass through.
Result<Membership> join_cluster(const os::Path& dir, const std::string& address,
                                const std::string& name);

}  // namespace weft::daemon
