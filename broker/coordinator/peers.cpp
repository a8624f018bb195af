// Peers: liveness, what their daemons report, coming and going.
#include "broker/coordinator/machine.h"

namespace weft::broker {
namespace {

// A worker may still run. "stopping": the daemon waits for its end.
bool active(const std::string& state) {
  const auto phase = phase_from_name<StagePhase>(state);
  return state == "stopping" || (phase && !ended(*phase));
}

}  // namespace

Peer* Machine::peer(const std::string& id) {
  const auto found = state_.peers.find(id);
  return found == state_.peers.end() ? nullptr : &found->second;
}

void Machine::set_phase(Peer& peer, PeerPhase to, const std::string& reason) {
  if (peer.phase == to) return;
  WEFT_CHECK(allowed(peer.phase, to));
  const auto from = peer.phase;
  peer.phase = to;
  ++state_.idle_version;
  effects_.push_back(PersistPeer{peer.id});
  emit("", "peer",
       fmt::format("{} {} -> {}: {}", peer_text(peer.id), phase_name(from), phase_name(to), reason),
       {{"peer", peer.id}, {"from", phase_name(from)}, {"to", phase_name(to)}});
}

// The state that follows from the peer's work; hidden while it is suspect or draining.
void Machine::set_work_phase(Peer& peer, PeerPhase to, const std::string& reason) {
  if (peer.phase == PeerPhase::kSuspect) {
    peer.former = to;
  } else if (peer.phase == PeerPhase::kIdle || peer.phase == PeerPhase::kAssigned ||
             peer.phase == PeerPhase::kRunning) {
    set_phase(peer, to, reason);
  }
}

void Machine::heard(Peer& peer, const std::string& how) {
  peer.last_seen_ms = now_ms_;
  switch (peer.phase) {
    case PeerPhase::kJoining:
    case PeerPhase::kGone:
      state_.last_arrival_ms = now_ms_;
      if (peer.drain_requested) {
        set_phase(peer, PeerPhase::kDraining, how + ", still to drain");
      } else {
        set_phase(peer, PeerPhase::kIdle, how);
      }
      break;
    case PeerPhase::kSuspect:
      if (peer.former == PeerPhase::kJoining) peer.former = PeerPhase::kIdle;
      if (peer.former == PeerPhase::kIdle) state_.last_arrival_ms = now_ms_;
      set_phase(peer, peer.former, how + " again");
      break;
    default:
      break;
  }
}

// The peer is gone: nothing is left assigned to it, and its job fails unless its part is in.
void Machine::lose(Peer& peer, const std::string& reason) {
  if (peer.phase == PeerPhase::kGone) return;
  const std::optional<Assignment> held = peer.assignment;
  peer.assignment.reset();
  peer.leftover = false;
  peer.hello_session = 0;  // it has missed what was sent meanwhile
  peer.hello_asked_ms = -1;
  set_phase(peer, PeerPhase::kGone, reason);
  if (!held) return;
  Job* owner = job(held->job);
  if (owner == nullptr || owner->epoch != held->epoch) return;
  if (!held->stopping && owner->phase == JobPhase::kRunning && part_is_in(*owner, held->stage)) {
    emit(owner->id, "stage",
         fmt::format("{}: {}; its part of the job is in", stage_text(*owner, held->stage), reason),
         {{"stage", held->stage}, {"peer", peer.id}});
  } else if (!held->stopping &&
             (owner->phase == JobPhase::kDeploying || owner->phase == JobPhase::kRunning)) {
    fail(*owner, Failure{"unavailable", reason, "", held->stage, peer.id});
  }
  maybe_cancelled(*owner);
}

void Machine::release(Peer& peer, const std::string& reason) {
  if (!peer.assignment) return;
  const std::string owner = peer.assignment->job;
  peer.assignment.reset();
  ++state_.idle_version;
  set_work_phase(peer, PeerPhase::kIdle, reason);
  if (Job* job_of = job(owner)) maybe_cancelled(*job_of);
}

void Machine::on(const PeerJoined& event) {
  Peer& entry = state_.peers[event.peer];
  if (entry.id.empty()) {
    entry.id = event.peer;
    entry.joined_ms = entry.last_seen_ms = now_ms_;
    emit("", "peer", fmt::format("peer {} ({}) was given a certificate", event.name, event.peer),
         {{"peer", event.peer}, {"to", "joining"}});
  }
  entry.name = event.name;
  entry.curve_public = event.curve_public;
  entry.key_fingerprint = event.key_fingerprint;
  entry.drain_requested = false;  // whoever invites it again wants it
  effects_.push_back(PersistPeer{event.peer});
}

void Machine::on(const PeerHello& event) {
  Peer* entry = peer(event.peer);
  if (entry == nullptr) return;
  if (event.session == entry->left_session && event.session != 0) return;
  if (entry->session != event.session) entry->heartbeat_sequence = 0;
  entry->session = entry->hello_session = event.session;
  entry->hello_asked_ms = -1;
  const uint64_t memory = memory_bytes_of(*entry);
  entry->capabilities = event.capabilities;
  if (memory_bytes_of(*entry) != memory) entry->free_memory_bytes = 0;  // of another device
  note_free_memory(*entry, event.free_memory_bytes);
  ++state_.idle_version;
  if (entry->phase == PeerPhase::kDraining && !entry->drain_requested && !entry->assignment) {
    set_phase(*entry, PeerPhase::kIdle, "came back");
    state_.last_arrival_ms = now_ms_;
  }
  heard(*entry, "said hello");
  effects_.push_back(PersistPeer{event.peer});
  effects_.push_back(SendWelcome{event.peer, false});
  if (entry->drain_requested) {
    // A daemon that started anew has forgotten it.
    effects_.push_back(SendDrain{event.peer, "drained by the administrator"});
  }
  reported(*entry, event.assignments);
}

void Machine::on(const PeerHeartbeat& event) {
  Peer* entry = peer(event.peer);
  if (entry == nullptr) return;
  if (event.session == entry->left_session && event.session != 0) return;
  if (entry->session == event.session && event.sequence <= entry->heartbeat_sequence &&
      entry->heartbeat_sequence != 0) {
    return;  // a straggler
  }
  entry->session = event.session;
  entry->heartbeat_sequence = event.sequence;
  note_free_memory(*entry, event.free_memory_bytes);
  heard(*entry, "was heard");
  ask_for_hello(*entry);
  if (event.draining && entry->phase != PeerPhase::kDraining) {
    set_phase(*entry, PeerPhase::kDraining, "it drains");
  } else if (!event.draining && entry->phase == PeerPhase::kDraining && !entry->drain_requested &&
             !entry->assignment) {
    set_phase(*entry, PeerPhase::kIdle, "it drains no more");
    state_.last_arrival_ms = now_ms_;
  }
  reported(*entry, event.assignments);
}

// A Hello lives only some seconds at the daemon, so it can be lost for good.
void Machine::ask_for_hello(Peer& peer) {
  if (peer.hello_session == peer.session) return;
  if (peer.hello_asked_ms >= 0 && now_ms_ - peer.hello_asked_ms < options_.hello_repeat_ms) return;
  peer.hello_asked_ms = now_ms_;
  effects_.push_back(SendWelcome{peer.id, true});
}

void Machine::reported(Peer& peer, const std::vector<ReportedAssignment>& assignments) {
  check_leftovers(peer, assignments);
  if (!peer.assignment) return;
  for (const ReportedAssignment& entry : assignments) {
    if (!peer.assignment->is(entry.job, entry.epoch, entry.stage)) continue;
    check_own_report(peer, entry);
    return;
  }
  peer.assignment->reported_active = false;
  check_missing(peer);
}

void Machine::check_own_report(Peer& peer, const ReportedAssignment& entry) {
  Assignment& held = *peer.assignment;
  held.seen = true;
  held.reported_active = active(entry.state);
  if (held.stopping) {
    if (!held.reported_active) {
      release(peer, "its worker ended");
    } else if (now_ms_ - held.stop_sent_ms >= options_.stop_repeat_ms) {
      send_stop(peer, "the job has ended");
    }
    return;
  }
  StageState* stage = held_stage(peer.id, held.job, held.epoch, held.stage);
  if (stage == nullptr || held.reported_active || ended(stage->phase)) {
    held.missing_since_ms = -1;
    return;
  }
  if (entry.state == "finished") {
    stage->phase = StagePhase::kFinished;
    stage_finished(*job(held.job), held.stage);
    return;
  }
  check_missing(peer);  // failed or stopped: the update that says why is still due
}

// The daemon lives and does not name what it was given. One heartbeat may have crossed the Prepare
// or overtaken an update, so it takes a while to be believed.
void Machine::check_missing(Peer& peer) {
  Assignment& held = *peer.assignment;
  if (held.stopping) {
    if (held.seen) release(peer, "its worker is gone");
    return;
  }
  Job* owner = job(held.job);
  StageState* stage = held_stage(peer.id, held.job, held.epoch, held.stage);
  if (owner == nullptr || stage == nullptr || ended(stage->phase)) return;
  if (held.missing_since_ms < 0) held.missing_since_ms = now_ms_;
  const int64_t patience_ms = held.seen ? options_.lost_ms : 3 * options_.lost_ms;
  if (now_ms_ - held.missing_since_ms < patience_ms) return;
  stage->phase = StagePhase::kFailed;
  fail(*owner, Failure{"internal",
                       held.seen ? "its daemon lost the worker (was it restarted?)"
                                 : "its daemon never took the assignment",
                       "", held.stage, peer.id});
}

void Machine::check_leftovers(Peer& peer, const std::vector<ReportedAssignment>& assignments) {
  const bool before = peer.leftover;
  peer.leftover = false;
  for (const ReportedAssignment& entry : assignments) {
    if (!active(entry.state)) continue;
    if (peer.assignment && peer.assignment->is(entry.job, entry.epoch, entry.stage)) continue;
    peer.leftover = true;
    if (now_ms_ - peer.leftover_stop_ms < options_.stop_repeat_ms) continue;
    effects_.push_back(SendStop{peer.id, entry.job, entry.epoch, entry.stage,
                                "the broker does not know this assignment any more"});
    emit("", "fence",
         fmt::format("{} still runs stage {} of job {} epoch {}: told to stop", peer_text(peer.id),
                     entry.stage, entry.job, entry.epoch),
         {{"peer", peer.id}, {"job", entry.job}, {"epoch", entry.epoch}});
  }
  if (peer.leftover && now_ms_ - peer.leftover_stop_ms >= options_.stop_repeat_ms) {
    peer.leftover_stop_ms = now_ms_;
  }
  if (before != peer.leftover) ++state_.idle_version;
}

void Machine::on(const PeerLeaving& event) {
  Peer* entry = peer(event.peer);
  if (entry == nullptr) return;
  entry->left_session = entry->session;
  lose(*entry, event.reason.empty() ? "it left" : "it left: " + event.reason);
}

void Machine::on(const DrainPeer& event) {
  Peer* entry = peer(event.peer);
  if (entry == nullptr) return;
  entry->drain_requested = true;
  effects_.push_back(PersistPeer{event.peer});
  if (entry->phase == PeerPhase::kGone) return;
  set_phase(*entry, PeerPhase::kDraining, "drained by the administrator");
  effects_.push_back(SendDrain{event.peer, "drained by the administrator"});
}

void Machine::on(const RemovePeer& event) {
  Peer* entry = peer(event.peer);
  if (entry == nullptr) return;
  effects_.push_back(SendRemoved{event.peer, "removed by the administrator"});
  effects_.push_back(Revoke{event.peer, entry->curve_public});
  lose(*entry, "it was removed by the administrator");
  std::erase_if(state_.revoked,
                [&](const auto& old) { return now_ms_ - old.second >= options_.revoked_ms; });
  state_.revoked[event.peer] = now_ms_;
  emit("", "peer", fmt::format("{} was removed, its keys are revoked", peer_text(event.peer)),
       {{"peer", event.peer}});
  state_.peers.erase(event.peer);
  effects_.push_back(ErasePeer{event.peer});
  // Peers serve blobs to each other: they must refuse its certificate from now on.
  for (const auto& [id, other] : state_.peers) {
    if (other.phase != PeerPhase::kGone) effects_.push_back(SendWelcome{id, false});
  }
}

void Machine::tick_peer(Peer& peer) {
  const int64_t silent_ms = now_ms_ - peer.last_seen_ms;
  const auto silence = [&] { return fmt::format("not heard for {} ms", silent_ms); };
  switch (peer.phase) {
    case PeerPhase::kGone:
      return;
    case PeerPhase::kJoining:
      if (silent_ms > 4 * options_.gone_ms) lose(peer, "it joined and never connected");
      return;
    case PeerPhase::kSuspect:
    case PeerPhase::kDraining:
      if (silent_ms > options_.gone_ms) {
        lose(peer, silence());
        return;
      }
      break;
    default:
      if (silent_ms > options_.suspect_ms) {
        peer.former = peer.phase;
        set_phase(peer, PeerPhase::kSuspect, silence());
      }
  }
  if (peer.assignment && peer.assignment->stopping && !peer.assignment->reported_active &&
      now_ms_ - peer.assignment->stop_since_ms > options_.stop_ms) {
    release(peer, fmt::format("no answer to Stop within {} ms", options_.stop_ms));
  }
  if (doubted(peer.correction)) doubt(peer);
}

// A broker that did not run (stopped, or its machine asleep) has heard nobody, which says nothing
// about them: its own gap does not count as their silence.
void Machine::forgive_own_sleep() {
  const int64_t gap_ms = state_.last_tick_ms < 0 ? 0 : now_ms_ - state_.last_tick_ms;
  state_.last_tick_ms = now_ms_;
  if (gap_ms <= options_.suspect_ms / 2) return;
  for (auto& [id, entry] : state_.peers) {
    if (entry.phase != PeerPhase::kGone) {
      entry.last_seen_ms = std::min(now_ms_, entry.last_seen_ms + gap_ms);
    }
  }
  for (auto& [id, entry] : state_.jobs) {
    entry.progress_ms = std::min(now_ms_, entry.progress_ms + gap_ms);
    entry.report_ms = std::min(now_ms_, entry.report_ms + gap_ms);
    if (entry.migration) entry.migration->deadline_ms += gap_ms;
    if (entry.phase != JobPhase::kDeploying) continue;
    entry.deadline_ms += gap_ms;
    for (StageState& stage : entry.stages) {
      stage.progress_ms = std::min(now_ms_, stage.progress_ms + gap_ms);
    }
  }
  emit("", "broker", fmt::format("the broker stood still for {} ms", gap_ms), {{"gap_ms", gap_ms}});
}

void Machine::on(const Tick&) {
  forgive_own_sleep();
  for (auto& [id, entry] : state_.peers) tick_peer(entry);  // which adds none and erases none
  for (auto& [id, entry] : state_.jobs) tick_job(entry);
  glance();
}

void Machine::on(const Restarted& event) {
  state_.last_tick_ms = -1;
  for (auto& [id, entry] : state_.peers) {
    entry.assignment.reset();
    entry.leftover = false;
    entry.session = entry.heartbeat_sequence = entry.left_session = entry.hello_session = 0;
    entry.hello_asked_ms = -1;
    entry.last_seen_ms = now_ms_;
    if (entry.phase == PeerPhase::kGone || entry.phase == PeerPhase::kDraining) continue;
    entry.former = entry.phase == PeerPhase::kJoining ? PeerPhase::kJoining : PeerPhase::kIdle;
    set_phase(entry, PeerPhase::kSuspect, "the broker restarted");
  }
  for (auto& [id, entry] : state_.jobs) {
    const std::string reason =
        fmt::format("the broker restarted at {}; {}", event.time_text, checkpoint_text(entry));
    if (entry.phase == JobPhase::kCancelling) {
      end(entry, JobPhase::kCancelled, "cancelled; " + reason, "");
    } else if (entry.phase == JobPhase::kDeploying || entry.phase == JobPhase::kRunning) {
      end(entry, JobPhase::kFailed, reason, fmt::format("weft job resume {}", entry.id));
    }
    entry.queued_ms = now_ms_;
  }
}

}  // namespace weft::broker
