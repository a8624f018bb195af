// Follows a job until it ends: one status line on a terminal, plain lines elsewhere, JSON lines
// with -o json.
#pragma once

#include <string>

#include "cli/api_client.h"

namespace weft::cli {

// Ok when the job finished; its reason and advice as an error when it failed or was cancelled.
Status watch_job(ApiClient& client, const std::string& id, Globals& globals);

// Whether a job's state is final.
bool job_ended(const nlohmann::json& job);

}  // namespace weft::cli
