#include "job/schedule_sim.h"

#include <algorithm>

#include "job/schedule_walk.h"

namespace weft::job {
namespace {

constexpr double kNever = -1;

// Each action's time follows from times already known.
class Simulator {
 public:
  Simulator(const opdag::StageGraph& graph, const std::vector<StageActions>& schedule,
            const SimulationOptions& options)
      : graph_(graph), schedule_(schedule), options_(options) {
    const std::vector<double> never(micro_batches_of(schedule), kNever);
    result_.activations.assign(graph.edges.size(), {never, never});
    result_.gradients = result_.activations;
    result_.busy.assign(schedule.size(), 0);
    clock_.assign(schedule.size(), 0);
    sent_.assign(2 * graph.edges.size(), {});
    received_.assign(2 * graph.edges.size(), {});
  }

  Simulation run() {
    const std::vector<size_t> done = walk(
        schedule_, [this](size_t stage, const Action& action) { return advance(stage, action); });
    result_.finished = true;
    for (size_t stage = 0; stage < schedule_.size(); ++stage) {
      result_.finished = result_.finished && done[stage] == schedule_[stage].size();
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
      case ActionKind::kSendGradient:
        return send(stage, action);
      case ActionKind::kRecvActivation:
      case ActionKind::kRecvGradient:
        return receive(stage, action);
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

  MessageTimes& messages(const Action& action) {
    return (is_gradient(action.kind) ? result_.gradients
                                     : result_.activations)[static_cast<size_t>(action.edge)];
  }

  // The n-th message of an edge waits for the receipt of the (n - credit)-th to be known.
  bool send(size_t stage, const Action& action) {
    const size_t edge = static_cast<size_t>(action.edge), channel = channel_of(action);
    std::vector<double>& sent = sent_[channel];
    if (!options_.credits.empty()) {
      const EdgeCredits& credits = options_.credits[edge];
      const auto credit =
          static_cast<size_t>(is_gradient(action.kind) ? credits.gradient : credits.activation);
      if (sent.size() >= credit) {
        const std::vector<double>& received = received_[channel];
        const size_t freed_by = sent.size() - credit;
        if (received.size() <= freed_by) return false;
        clock_[stage] = std::max(clock_[stage], received[freed_by] + delay(edge));
      }
    }
    sent.push_back(clock_[stage]);
    messages(action).sent[static_cast<size_t>(action.micro_batch)] = clock_[stage];
    return true;
  }

  bool receive(size_t stage, const Action& action) {
    const size_t micro_batch = static_cast<size_t>(action.micro_batch);
    const double sent = messages(action).sent[micro_batch];
    if (sent == kNever) return false;
    clock_[stage] = std::max(clock_[stage], sent + delay(static_cast<size_t>(action.edge)));
    messages(action).received[micro_batch] = clock_[stage];
    received_[channel_of(action)].push_back(clock_[stage]);
    return true;
  }

  const opdag::StageGraph& graph_;
  const std::vector<StageActions>& schedule_;
  const SimulationOptions& options_;
  Simulation result_;
  std::vector<double> clock_;
  std::vector<std::vector<double>> sent_, received_;  // by channel_of, in order of happening
};

}  // namespace

Simulation simulate_schedule(const opdag::StageGraph& graph,
                             const std::vector<StageActions>& schedule,
                             const SimulationOptions& options) {
  return Simulator(graph, schedule, options).run();
}

}  // namespace weft::job
