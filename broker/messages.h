// Control messages to coordinator events: the border where what peers send is bounded and checked.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "broker/coordinator/coordinator.h"
#include "broker/links/link_types.h"
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

// A task of the book of links, as its prober gets it. kUnavailable: a target is not there, or has
// nothing that others can dial.
Result<proto::Probe> probe_message(const ProbeTask& task, const std::map<std::string, Peer>& peers);
// What it answered, every number within what links and clocks can be. The error says what is not;
// whether anybody asked for it is the book's to judge.
Result<ProbeResult> probe_result(const proto::ProbeReport& report);

}  // namespace weft::broker
