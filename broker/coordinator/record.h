// Peers and jobs as JSON records, the form the store keeps. What belongs to a deployment under way
// is left out: a restarted broker ends every job that was deployed (see Restarted).
#pragma once

#include <nlohmann/json.hpp>

#include "broker/coordinator/state.h"

namespace weft::broker {

nlohmann::json peer_to_record(const Peer& peer);
Result<Peer> peer_from_record(const nlohmann::json& record);

// Without checkpoints: they are rows of their own.
nlohmann::json job_to_record(const Job& job);
Result<Job> job_from_record(const nlohmann::json& record);

nlohmann::json checkpoint_to_record(const Checkpoint& checkpoint);
Result<Checkpoint> checkpoint_from_record(const nlohmann::json& record);

}  // namespace weft::broker
