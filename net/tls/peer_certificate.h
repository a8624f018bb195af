// What the other side's certificate says, read without the rest of net/identity, so that the
// worker links no ZeroMQ. Layout: subject CN = peer id, O = kind ("worker"), organizational units
// "job=<id>", "epoch=<n>", "stage=<n>". Pure.
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <string>

#include "base/result.h"

namespace weft::net {

struct PeerCertificate {
  std::string peer;
  std::string kind;
  std::string job;
  uint32_t epoch = 0;
  int32_t stage = -1;
};

// kDenied when the certificate is not that of a worker or lacks a field.
Result<PeerCertificate> read_worker_certificate(const X509* certificate);

}  // namespace weft::net
