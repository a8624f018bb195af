// What all that follow a schedule action by action share. Stages are sequential processes joined by
// messages, so the order in which they are moved on does not matter.
#pragma once

#include <algorithm>
#include <vector>

#include "job/schedule.h"

namespace weft::job {

inline bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendActivation || kind == ActionKind::kSendGradient;
}

inline bool is_receive(ActionKind kind) {
  return kind == ActionKind::kRecvActivation || kind == ActionKind::kRecvGradient;
}

// Whether the message goes against the edge.
inline bool is_gradient(ActionKind kind) {
  return kind == ActionKind::kSendGradient || kind == ActionKind::kRecvGradient;
}

// Each edge has two channels, of activations and of gradients. The action must be a send or a
// receive.
inline size_t channel_of(const Action& action) {
  return 2 * static_cast<size_t>(action.edge) + (is_gradient(action.kind) ? 1 : 0);
}

// One more than the largest that occurs.
inline size_t micro_batches_of(const std::vector<StageActions>& schedule) {
  size_t most = 0;
  for (const StageActions& actions : schedule) {
    for (const Action& action : actions) {
      most = std::max(most, static_cast<size_t>(action.micro_batch) + 1);
    }
  }
  return most;
}

// Moves every stage on until none can: advance(stage, action) does the action, or says false where
// it must wait for another stage. Returns how many actions each has done.
template <typename Advance>
std::vector<size_t> walk(const std::vector<StageActions>& schedule, Advance&& advance) {
  std::vector<size_t> done(schedule.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stage = 0; stage < schedule.size(); ++stage) {
      while (done[stage] < schedule[stage].size() && advance(stage, schedule[stage][done[stage]])) {
        ++done[stage];
        moved = true;
      }
    }
  }
  return done;
}

}  // namespace weft::job
