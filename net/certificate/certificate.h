// What a certificate of the cluster says: subject CN = peer id, O = kind ("broker", "peer" or
// "worker"), and for workers the organizational units "job=<id>", "epoch=<n>", "stage=<n>". The one
// reader for the control and the data plane; it links no ZeroMQ. Pure.
#pragma once

#include <openssl/types.h>

#include <boost/system/error_code.hpp>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace weft::net {

struct CertificateInfo {
  std::string subject;  // peer id
  std::string kind;     // "broker", "peer" or "worker"
  std::string job;      // of worker certificates
  uint32_t epoch = 0;
  int32_t stage = -1;
  std::string serial_hex;
  int64_t not_after_ms = 0;
};

// kInvalid when the text is no certificate, or the subject says a thing twice, not at all, or one
// that is not known here.
Result<CertificateInfo> read_certificate(const std::string& pem);
Result<CertificateInfo> read_certificate(const X509* certificate);

// The same for the other end of a data link: kDenied unless it is a worker's.
Result<CertificateInfo> read_worker_certificate(const X509* certificate);

// An alert of the other side about our certificate, or one that we refused, as opposed to a
// connection that merely broke: repeating cannot help.
bool is_certificate_error(const boost::system::error_code& ec);

}  // namespace weft::net
