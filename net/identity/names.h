// Which texts may stand in certificates: ids of peers and jobs, host names. Pure.
#pragma once

#include <string>

#include "base/result.h"

namespace weft::net {

// 1..64 characters of [A-Za-z0-9._-]: it becomes a common name, a file name and a log field.
Status check_subject(const std::string& subject);
// 1..60: with "job=" before it, an organisational unit holds at most 64. Begins with a letter or
// digit: it names folders too.
Status check_job_id(const std::string& job);
// An IPv4 or IPv6 address without brackets, or a DNS name.
bool is_ip_address(const std::string& host);
bool is_host_name(const std::string& host);

}  // namespace weft::net
