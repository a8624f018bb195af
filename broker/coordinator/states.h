// The life of peers, jobs and stages: every state and every allowed transition, in this one file.
// Pure data; the coordinator asserts each change of state against these tables.
//
//   Peer
//                       missed heartbeats           silent for gone_ms
//     joining ─hello─▶ idle ◀──────────▶ suspect ──────────────────────▶ gone
//                     │  ▲   heard again  ▲  │                          ▲  │
//            planned  ▼  │ released       │  └─ (returns to the state   │  └─ hello ─▶ idle
//                   assigned ─────────────┤      it had before)         │
//                     │ start             │                             │
//                     ▼                   │                             │
//                   running ──────────────┘                             │
//     any but gone ── drain ──▶ draining ── leaves, or falls silent ────┘
//     any ── "leaving" ──▶ gone
//
//   Job
//     queued ─plan─▶ deploying ─all ready, start─▶ running ─all finished─▶ finished
//       ▲  │             │  │                       │  │                      │
//       │  │ cancel      │  └──── failure ──────────┤  └─ cancel ─▶ cancelling│
//       │  ▼             ▼                          ▼               │         │
//       │ cancelled ◀── cancelling (all stopped)   failed ◀─────────┘(never)  │
//       ├────────── resume, with epoch + 1 ── failed | cancelled | finished ──┘
//       └── migration, with epoch + 1 ── running (its checkpoint is complete)
//                                     | deploying (the new plan did not come up)
//
//   Stage, as its daemon reports it (only forward; an end is final)
//     preparing ─▶ listening ─▶ ready ─▶ running ─▶ finished | failed | stopped
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace weft::broker {

enum class PeerPhase : uint8_t { kJoining, kIdle, kAssigned, kRunning, kSuspect, kDraining, kGone };
enum class JobPhase : uint8_t {
  kQueued,
  kDeploying,
  kRunning,
  kCancelling,
  kFinished,
  kFailed,
  kCancelled
};
enum class StagePhase : uint8_t {
  kPreparing,
  kListening,
  kReady,
  kRunning,
  kFinished,
  kFailed,
  kStopped
};

inline constexpr std::array<std::string_view, 7> kPeerPhaseNames = {
    "joining", "idle", "assigned", "running", "suspect", "draining", "gone"};
inline constexpr std::array<std::string_view, 7> kJobPhaseNames = {
    "queued", "deploying", "running", "cancelling", "finished", "failed", "cancelled"};
inline constexpr std::array<std::string_view, 7> kStagePhaseNames = {
    "preparing", "listening", "ready", "running", "finished", "failed", "stopped"};

inline constexpr std::pair<PeerPhase, PeerPhase> kPeerTransitions[] = {
    {PeerPhase::kJoining, PeerPhase::kIdle},
    {PeerPhase::kJoining, PeerPhase::kSuspect},
    {PeerPhase::kJoining, PeerPhase::kDraining},
    {PeerPhase::kJoining, PeerPhase::kGone},
    {PeerPhase::kIdle, PeerPhase::kAssigned},
    {PeerPhase::kIdle, PeerPhase::kSuspect},
    {PeerPhase::kIdle, PeerPhase::kDraining},
    {PeerPhase::kIdle, PeerPhase::kGone},
    {PeerPhase::kAssigned, PeerPhase::kRunning},
    {PeerPhase::kAssigned, PeerPhase::kIdle},
    {PeerPhase::kAssigned, PeerPhase::kSuspect},
    {PeerPhase::kAssigned, PeerPhase::kDraining},
    {PeerPhase::kAssigned, PeerPhase::kGone},
    {PeerPhase::kRunning, PeerPhase::kIdle},
    {PeerPhase::kRunning, PeerPhase::kSuspect},
    {PeerPhase::kRunning, PeerPhase::kDraining},
    {PeerPhase::kRunning, PeerPhase::kGone},
    {PeerPhase::kSuspect, PeerPhase::kJoining},
    {PeerPhase::kSuspect, PeerPhase::kIdle},
    {PeerPhase::kSuspect, PeerPhase::kAssigned},
    {PeerPhase::kSuspect, PeerPhase::kRunning},
    {PeerPhase::kSuspect, PeerPhase::kDraining},
    {PeerPhase::kSuspect, PeerPhase::kGone},
    {PeerPhase::kDraining, PeerPhase::kIdle},  // a daemon that drained by itself came back
    {PeerPhase::kDraining, PeerPhase::kGone},
    {PeerPhase::kGone, PeerPhase::kIdle},
    {PeerPhase::kGone, PeerPhase::kDraining},
};

inline constexpr std::pair<JobPhase, JobPhase> kJobTransitions[] = {
    {JobPhase::kQueued, JobPhase::kDeploying},   {JobPhase::kQueued, JobPhase::kCancelled},
    {JobPhase::kQueued, JobPhase::kFailed},      {JobPhase::kDeploying, JobPhase::kRunning},
    {JobPhase::kDeploying, JobPhase::kFailed},   {JobPhase::kDeploying, JobPhase::kCancelling},
    {JobPhase::kRunning, JobPhase::kFinished},   {JobPhase::kRunning, JobPhase::kFailed},
    {JobPhase::kRunning, JobPhase::kCancelling}, {JobPhase::kCancelling, JobPhase::kCancelled},
    {JobPhase::kFailed, JobPhase::kQueued},      {JobPhase::kCancelled, JobPhase::kQueued},
    {JobPhase::kFinished, JobPhase::kQueued},    {JobPhase::kRunning, JobPhase::kQueued},
    {JobPhase::kDeploying, JobPhase::kQueued},
};

template <typename Phase, size_t N>
constexpr bool transition_in(const std::pair<Phase, Phase> (&table)[N], Phase from, Phase to) {
  for (const auto& row : table) {
    if (row.first == from && row.second == to) return true;
  }
  return false;
}
constexpr bool allowed(PeerPhase from, PeerPhase to) {
  return transition_in(kPeerTransitions, from, to);
}
constexpr bool allowed(JobPhase from, JobPhase to) {
  return transition_in(kJobTransitions, from, to);
}

constexpr std::string_view phase_name(PeerPhase p) {
  return kPeerPhaseNames[static_cast<size_t>(p)];
}
constexpr std::string_view phase_name(JobPhase p) {
  return kJobPhaseNames[static_cast<size_t>(p)];
}
constexpr std::string_view phase_name(StagePhase p) {
  return kStagePhaseNames[static_cast<size_t>(p)];
}

template <typename Phase>
std::optional<Phase> phase_from_name(std::string_view name) {
  for (uint8_t i = 0; i < 7; ++i) {
    if (phase_name(static_cast<Phase>(i)) == name) return static_cast<Phase>(i);
  }
  return std::nullopt;
}

// No transition but a resume leads out of these.
constexpr bool ended(JobPhase p) {
  return p == JobPhase::kFinished || p == JobPhase::kFailed || p == JobPhase::kCancelled;
}
constexpr bool ended(StagePhase p) {
  return p >= StagePhase::kFinished;
}

}  // namespace weft::broker
