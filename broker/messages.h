// Control messages to coordinator events: the border where what peers send is bounded and checked.
#pragma once

#include <optional>

#include "broker/coordinator/coordinator.h"
#include "job/worker_spec.h"
#include "net/proto/control.pb.h"

namespace weft::broker {

// nullopt: not an event of the coordinator (acks, logs, blob lists), or not to be believed.
std::optional<Event> event_of(const std::string& peer, const proto::PeerMessage& message);
// The error says what is wrong with the profile.
Result<Event> event_of(const std::string& peer, const proto::MeasuredProfile& measured);
// Of a worker's own event; steps and evaluations only.
std::optional<Event> event_of(const std::string& peer, const proto::WorkerReport& report,
                              const job::WorkerEvent& event);

}  // namespace weft::broker
