// The credits a schedule needs: from playing it, and from what its order of actions implies.
#include <algorithm>
#include <utility>

#include "job/schedule.h"
#include "job/schedule_sim.h"
#include "job/schedule_walk.h"

namespace weft::job {
namespace {

using opdag::StageGraph;

// One more than are out at once, of so many messages.
int32_t credit_of(size_t most, size_t messages) {
  const size_t wanted = std::max<size_t>(most + 1, 2);
  return static_cast<int32_t>(std::clamp<size_t>(wanted, 1, std::max<size_t>(messages, 1)));
}

// Credits out at once, at most: sends so far less receipts whose news is back.
int32_t credit_of(const MessageTimes& times, double delay) {
  std::vector<double> sent, back;
  for (size_t i = 0; i < times.sent.size(); ++i) {
    if (times.sent[i] < 0) continue;
    sent.push_back(times.sent[i]);
    back.push_back(times.received[i] + delay);
  }
  std::sort(sent.begin(), sent.end());
  std::sort(back.begin(), back.end());
  size_t most = 0;
  for (size_t i = 0, returned = 0; i < sent.size(); ++i) {
    while (returned < i && back[returned] <= sent[i]) ++returned;
    most = std::max(most, i + 1 - returned);
  }
  return credit_of(most, sent.size());
}

std::vector<EdgeCredits> played(const StageGraph& graph, const std::vector<StageActions>& schedule,
                                double delay) {
  SimulationOptions options;
  options.edge_delay.assign(graph.edges.size(), delay);
  const Simulation simulation = simulate_schedule(graph, schedule, options);
  WEFT_CHECK(simulation.finished);  // a schedule that stands still without any credit limit
  std::vector<EdgeCredits> credits;
  for (size_t i = 0; i < graph.edges.size(); ++i) {
    credits.push_back(
        {credit_of(simulation.activations[i], delay), credit_of(simulation.gradients[i], delay)});
  }
  return credits;
}

// The credits with which no send waits where all ways take the same time, whatever that is, and
// however long the stages compute: a send whose sender was told of a receipt, by whatever chain of
// messages, goes out no earlier than that credit is back. Each stage has a vector clock (Mattern
// 1989) of the receipts of each stage that it can know of; a message takes it along.
class Causality {
 public:
  Causality(const StageGraph& graph, const std::vector<StageActions>& schedule)
      : graph_(graph),
        schedule_(schedule),
        channels_(2 * graph.edges.size()),
        stages_(schedule.size()) {
    const size_t micro_batches = micro_batches_of(schedule);
    for (Channel& channel : channels_) channel.told.assign(micro_batches, kNone);
    for (Stage& stage : stages_) stage.clock.assign(schedule.size(), 0);
  }

  std::vector<EdgeCredits> run() {
    walk(schedule_, [this](size_t stage, const Action& action) { return advance(stage, action); });
    std::vector<EdgeCredits> credits;
    for (size_t edge = 0; edge < graph_.edges.size(); ++edge) {
      const Channel &there = channels_[2 * edge], &back = channels_[2 * edge + 1];
      credits.push_back({credit_of(there.most, there.sends), credit_of(back.most, back.sends)});
    }
    return credits;
  }

 private:
  using Clock = std::vector<uint32_t>;  // by stage
  static constexpr size_t kNone = SIZE_MAX;
  struct Channel {
    std::vector<size_t> told;        // by micro-batch: the copy on its way
    std::vector<uint32_t> receipts;  // by the receiver's clock
    size_t sends = 0, known = 0;     // known to the sender: so many receipts
    size_t most = 0;                 // sends ahead of the known ones
  };
  struct Stage {
    Clock clock;
    size_t copy = kNone;  // of the clock as it is
  };
  // All that a stage sends between two receipts takes the same.
  struct Copy {
    Clock clock;
    size_t users = 0;  // messages on their way, and the stage whose clock it is
  };

  // False: the message was not sent yet.
  bool advance(size_t at, const Action& action) {
    if (!is_send(action.kind) && !is_receive(action.kind)) return true;
    const opdag::Edge& edge = graph_.edges[static_cast<size_t>(action.edge)];
    Channel& channel = channels_[channel_of(action)];
    size_t& told = channel.told[static_cast<size_t>(action.micro_batch)];
    if (is_send(action.kind)) {
      const uint32_t there =
          stages_[at].clock[static_cast<size_t>(is_gradient(action.kind) ? edge.from : edge.to)];
      while (channel.known < channel.receipts.size() && channel.receipts[channel.known] < there) {
        ++channel.known;
      }
      channel.most = std::max(channel.most, ++channel.sends - channel.known);
      told = copy_of(stages_[at]);
      return true;
    }
    if (told == kNone) return false;
    Clock& clock = stages_[at].clock;
    channel.receipts.push_back(clock[at]);
    const Clock& sender = copies_[told].clock;
    for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], sender[i]);
    ++clock[at];
    release(told);
    if (stages_[at].copy != kNone) release(std::exchange(stages_[at].copy, kNone));
    return true;
  }

  size_t copy_of(Stage& stage) {
    if (stage.copy == kNone) {
      if (free_.empty()) {
        free_.push_back(copies_.size());
        copies_.emplace_back();
      }
      stage.copy = free_.back();
      free_.pop_back();
      copies_[stage.copy] = {stage.clock, 1};
    }
    ++copies_[stage.copy].users;
    return stage.copy;
  }

  void release(size_t copy) {
    if (--copies_[copy].users == 0) free_.push_back(copy);
  }

  const StageGraph& graph_;
  const std::vector<StageActions>& schedule_;
  std::vector<Channel> channels_;  // by channel_of
  std::vector<Stage> stages_;
  std::vector<Copy> copies_;
  std::vector<size_t> free_;  // of these
};

}  // namespace

std::vector<EdgeCredits> credits_for(const StageGraph& graph,
                                     const std::vector<StageActions>& schedule, int32_t gap) {
  WEFT_CHECK(gap >= 1);
  std::vector<EdgeCredits> credits = played(graph, schedule, gap - 1);
  const std::vector<EdgeCredits> most = Causality(graph, schedule).run();
  for (size_t i = 0; i < credits.size(); ++i) {
    EdgeCredits& own = credits[i];
    own.activation = std::max(own.activation, std::min(most[i].activation, kUsefulCredits));
    own.gradient = std::max(own.gradient, std::min(most[i].gradient, kUsefulCredits));
  }
  return credits;
}

}  // namespace weft::job
