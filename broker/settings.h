// The broker's configuration table: flags, environment (WEFT_BROKER_*), file and help follow.
#pragma once

#include "base/config.h"
#include "broker/service.h"

namespace weft::broker {

Config make_config();
// Reads peers_file and links_file. Errors name the file and the line.
Result<ServiceOptions> service_options(const Config& config);
os::Path state_dir(const Config& config);

}  // namespace weft::broker
