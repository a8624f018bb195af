// The credits a schedule needs, from playing it.
#include <algorithm>

#include "job/schedule.h"
#include "job/schedule_sim.h"

namespace weft::job {
namespace {

using opdag::StageGraph;

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
  const size_t wanted = std::max<size_t>(most + 1, 2);
  return static_cast<int32_t>(std::clamp<size_t>(wanted, 1, std::max<size_t>(sent.size(), 1)));
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

}  // namespace

std::vector<EdgeCredits> credits_for(const StageGraph& graph,
                                     const std::vector<StageActions>& schedule, int32_t gap) {
  WEFT_CHECK(gap >= 1);
  size_t longest = 0;  // no stage computes for so long in a step
  for (const StageActions& actions : schedule) longest = std::max(longest, actions.size());
  std::vector<EdgeCredits> credits = played(graph, schedule, gap - 1);
  const std::vector<EdgeCredits> most = played(graph, schedule, static_cast<double>(longest));
  for (size_t i = 0; i < credits.size(); ++i) {
    EdgeCredits& own = credits[i];
    own.activation = std::max(own.activation, std::min(most[i].activation, kUsefulCredits));
    own.gradient = std::max(own.gradient, std::min(most[i].gradient, kUsefulCredits));
  }
  return credits;
}

}  // namespace weft::job
