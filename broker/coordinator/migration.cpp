#include "broker/coordinator/migration.h"

#include <fmt/format.h>

#include <algorithm>

namespace weft::broker {
namespace {

std::string mebibytes(double bytes) {
  return fmt::format("{:.3g} MiB", bytes / (1 << 20));
}

}  // namespace

MigrationVerdict judge_migration(const Replanned& replanned, int64_t steps_left, double startup_s) {
  if (replanned.same) return {false, "planned anew, the plan is the same"};
  if (!replanned.timed) {
    return {false,
            "another plan was found, but not every peer's speed is known: what it would "
            "save cannot be told"};
  }
  const double saved_s = replanned.current_s - replanned.planned_s;
  const std::string steps = fmt::format("{:.3g} s a step predicted instead of {:.3g}",
                                        replanned.planned_s, replanned.current_s);
  if (!(saved_s > kLeastShare * replanned.current_s)) {
    return {false, fmt::format("the best other plan saves too little: {}, less than {:.0f} %",
                               steps, 100 * kLeastShare)};
  }
  StageFetch slowest;
  double fetched = 0;
  for (const StageFetch& fetch : replanned.fetches) {
    fetched += fetch.bytes;
    if (fetch.seconds > slowest.seconds) slowest = fetch;
  }
  const double cost_s = replanned.store_s + slowest.seconds + startup_s;
  const double gain_s = static_cast<double>(steps_left) * saved_s;
  std::string cost = fmt::format(
      "the move costs {:.3g} s: {:.3g} to store a checkpoint of {}, {:.3g} to fetch {} in all",
      cost_s, replanned.store_s, mebibytes(replanned.store_bytes), slowest.seconds,
      mebibytes(fetched));
  if (slowest.seconds > 0) {
    cost += fmt::format(" ({} for {})", mebibytes(slowest.bytes), slowest.peer);
  }
  cost += fmt::format(", {:.3g} to start workers", startup_s);
  std::string text = fmt::format("{}, {:.3g} s over {} steps; {}", steps, gain_s, steps_left, cost);
  if (gain_s >= kLeastReturn * cost_s) return {true, std::move(text)};
  return {false, fmt::format("the move would not pay {:g} times over: {}", kLeastReturn, text)};
}

}  // namespace weft::broker
