#include "job/schedule_sim.h"

#include <algorithm>

namespace weft::job {
namespace {

constexpr double kNever = -1;

// Stages are independent sequential processes joined by messages, so each action's time follows
// from times already known; the order in which stages are advanced does not matter.
class Simulator {
 public:
  Simulator(const opdag::StageGraph& graph, const std::vector<StageActions>& schedule,
            const SimulationOptions& options)
      : graph_(graph), schedule_(schedule), options_(options) {
    size_t micro_batches = 0;
    for (const StageActions& actions : schedule) {
      for (const Action& action : actions) {
        micro_batches = std::max(micro_batches, static_cast<size_t>(action.micro_batch) + 1);
      }
    }
    const std::vector<double> never(micro_batches, kNever);
    result_.activations.assign(graph.edges.size(), {never, never});
    result_.gradients = result_.activations;
    result_.busy.assign(schedule.size(), 0);
    clock_.assign(schedule.size(), 0);
    position_.assign(schedule.size(), 0);
    sent_.assign(2 * graph.edges.size(), {});
    received_.assign(2 * graph.edges.size(), {});
  }

  Simulation run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stage = 0; stage < schedule_.size(); ++stage) {
        while (position_[stage] < schedule_[stage].size() &&
               advance(stage, schedule_[stage][position_[stage]])) {
          ++position_[stage];
          moved = true;
        }
      }
    }
    result_.finished = true;
    for (size_t stage = 0; stage < schedule_.size(); ++stage) {
      result_.finished = result_.finished && position_[stage] == schedule_[stage].size();
      result_.makespan = std::max(result_.makespan, clock_[stage]);
    }
    return std::move(result_);
  }

 private:
  bool advance(size_t stage, const Action& action) {
    switch (action.kind) {
      case ActionKind::kForward:
        return compute(stage, times(stage).forward);
      case ActionKind::kBackward:
        return compute(stage, times(stage).backward);
      case ActionKind::kBackwardInput:
        return compute(stage, times(stage).backward * (1 - times(stage).weight_share));
      case ActionKind::kBackwardWeight:
        return compute(stage, times(stage).backward * times(stage).weight_share);
      case ActionKind::kStep:
        return true;
      case ActionKind::kSendActivation:
        return send(stage, action, result_.activations, 0);
      case ActionKind::kSendGradient:
        return send(stage, action, result_.gradients, 1);
      case ActionKind::kRecvActivation:
        return receive(stage, action, result_.activations, 0);
      case ActionKind::kRecvGradient:
        return receive(stage, action, result_.gradients, 1);
    }
    return false;
  }

  StageTimes times(size_t stage) const {
    return options_.stages.empty() ? StageTimes{} : options_.stages[stage];
  }
  double delay(size_t edge) const {
    return options_.edge_delay.empty() ? 0 : options_.edge_delay[edge];
  }

  bool compute(size_t stage, double time) {
    clock_[stage] += time;
    result_.busy[stage] += time;
    return true;
  }

  // The n-th message of an edge waits for the receipt of the (n - credit)-th to be known.
  bool send(size_t stage, const Action& action, std::vector<MessageTimes>& messages, size_t way) {
    const size_t edge = static_cast<size_t>(action.edge);
    std::vector<double>& sent = sent_[2 * edge + way];
    if (!options_.credits.empty()) {
      const EdgeCredits& credits = options_.credits[edge];
      const size_t credit = static_cast<size_t>(way == 0 ? credits.activation : credits.gradient);
      if (sent.size() >= credit) {
        const std::vector<double>& received = received_[2 * edge + way];
        const size_t freed_by = sent.size() - credit;
        if (received.size() <= freed_by) return false;
        clock_[stage] = std::max(clock_[stage], received[freed_by] + delay(edge));
      }
    }
    sent.push_back(clock_[stage]);
    messages[edge].sent[static_cast<size_t>(action.micro_batch)] = clock_[stage];
    return true;
  }

  bool receive(size_t stage, const Action& action, std::vector<MessageTimes>& messages,
               size_t way) {
    const size_t edge = static_cast<size_t>(action.edge);
    const size_t micro_batch = static_cast<size_t>(action.micro_batch);
    const double sent = messages[edge].sent[micro_batch];
    if (sent == kNever) return false;
    clock_[stage] = std::max(clock_[stage], sent + delay(edge));
    messages[edge].received[micro_batch] = clock_[stage];
    received_[2 * edge + way].push_back(clock_[stage]);
    return true;
  }

  const opdag::StageGraph& graph_;
  const std::vector<StageActions>& schedule_;
  const SimulationOptions& options_;
  Simulation result_;
  std::vector<double> clock_;
  std::vector<size_t> position_;
  std::vector<std::vector<double>> sent_, received_;  // [2 edge + way], in order of happening
};

}  // namespace

Simulation simulate_schedule(const opdag::StageGraph& graph,
                             const std::vector<StageActions>& schedule,
                             const SimulationOptions& options) {
  return Simulator(graph, schedule, options).run();
}

}  // namespace weft::job
