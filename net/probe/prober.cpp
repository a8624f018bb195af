#include "net/probe/prober.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/os/signals.h"
#include "net/probe/train_series.h"

namespace weft::net {
namespace {

constexpr size_t kLeastTrips = 2, kMostTrips = 10;
constexpr double kTripsShare = 0.05;  // of the time
// Over long ways trains of a few MiB take round trips, not seconds.
constexpr double kNearS = 8, kTripsOfTrains = 40;
// Of the time, for each of two peers alone; the rest is for both at once.
constexpr double kAloneShare = 0.35;
constexpr double kMostTogetherS = 1, kLeastTogetherS = 0.01;
constexpr int kTogetherRounds = 2;

constexpr const char *kPath = "/api/v1/probe", *kTrainPath = "/api/v1/probe/train";

}  // namespace

double time_to_measure_s(double most_s, double round_trip_s, size_t targets) {
  const double each_s = std::max(kNearS, kTripsOfTrains * round_trip_s);
  const bool twice = targets == 2 && round_trip_s >= TrainSeries::kFarS;
  return std::min(most_s, twice ? 2 * each_s : each_s);
}

// One connection to one peer.
class Prober::Line {
 public:
  Line(const ProbeTarget& target, bool receive) : client_(target.client), receive_(receive) {
    way.peer = target.peer;
  }

  // The way may be looked at from the thread of run() while no train is under way.
  ProbedWay way;
  bool busy = false;
  bool failed = false;

  void interrupt() { client_.interrupt(); }

  Status round_trip() {
    auto answer = checked(client_.request("GET", kPath));
    return answer.ok() ? Status() : Status(answer.error());
  }

  Status measure_round_trip() {
    const double sent = monotonic_seconds();
    WEFT_TRY_STATUS(round_trip());
    const double seconds = monotonic_seconds() - sent;
    way.round_trip_s = way.round_trip_s == 0 ? seconds : std::min(way.round_trip_s, seconds);
    return {};
  }

  Status measure_round_trips(double at_most_s) {
    const double start = monotonic_seconds();
    for (size_t trip = 0; trip < kMostTrips; ++trip) {
      if (trip >= kLeastTrips && monotonic_seconds() - start > at_most_s) break;
      WEFT_TRY_STATUS(measure_round_trip());
    }
    return {};
  }

  // nullopt: it says nothing of a rate.
  Result<std::optional<TrainRate>> train(const TrainSeries::Train& train) {
    const double asked = monotonic_seconds();
    WEFT_TRY(auto rate, receive_ ? received(train) : sent(train));
    if (rate) bound_rate(*rate, monotonic_seconds() - asked, way.round_trip_s);
    return rate;
  }

  // The peer may be measured by others; nothing depends on whether it hears that.
  void leave() {
    if (!failed) (void)client_.request("DELETE", kPath);
  }

 private:
  Result<HttpResponse> checked(Result<HttpResponse> answer) {
    failed = failed || !answer.ok() || answer->status >= 300;
    if (!answer.ok() || answer->status < 300) return answer;
    busy = answer->status == 503;
    return error_from_response(*answer).within(fmt::format("peer {}", way.peer));
  }

  Result<std::optional<TrainRate>> received(const TrainSeries::Train& train) {
    ArrivalLog log;
    HttpFlow flow;
    flow.arrived = [&](size_t bytes) {
      log.note(bytes, monotonic_seconds());
      return true;
    };
    const std::string target = fmt::format("{}?bytes={}&ms={}", kTrainPath, train.bytes,
                                           static_cast<int64_t>(1e3 * train.seconds));
    WEFT_TRY([[maybe_unused]] const auto answer, checked(client_.stream("GET", target, flow)));
    return train_rate(log.arrivals());
  }

  Result<std::optional<TrainRate>> sent(const TrainSeries::Train& train) {
    HttpFlow flow;
    double until_s = 0;
    flow.send = [&, left = train.bytes](std::span<char> room) mutable {
      const double now = monotonic_seconds();
      if (until_s == 0) until_s = now + train.seconds;
      if (now > until_s) return size_t{0};
      const uint64_t bytes = std::min<uint64_t>(left, room.size());
      left -= bytes;
      return static_cast<size_t>(bytes);
    };
    WEFT_TRY(const auto answer, checked(client_.stream("PUT", kTrainPath, flow)));
    const auto said = nlohmann::json::parse(answer.body, nullptr, false);
    WEFT_TRY(const auto arrivals,
             arrivals_from_json(said.is_object() ? said.value("arrivals", nlohmann::json())
                                                 : nlohmann::json()));
    return train_rate(arrivals);
  }

  HttpClient client_;
  bool receive_;
};

Prober::Prober(ProbeOrder order) : order_(std::move(order)) {
  for (const ProbeTarget& target : order_.targets) {
    lines_.push_back(std::make_unique<Line>(target, order_.receive));
  }
}

Prober::~Prober() = default;

void Prober::interrupt() {
  for (const auto& line : lines_) line->interrupt();
}

ProbeFinding Prober::run() {
  Status status;
  // Connections are opened first: a handshake is no round trip.
  for (const auto& line : lines_) {
    if (status.ok()) status = line->round_trip();
  }
  if (status.ok()) {
    status = measure(static_cast<double>(order_.max_ms) / 1e3);
  }
  for (const auto& line : lines_) line->leave();
  return finding(status);
}

Status Prober::measure(double most_s) {
  const double start_s = monotonic_seconds();
  double farthest_s = 0;
  for (const auto& line : lines_) {
    WEFT_TRY_STATUS(line->measure_round_trips(kTripsShare * std::min(most_s, kNearS)));
    farthest_s = std::max(farthest_s, line->way.round_trip_s);
  }
  const double until_s = start_s + time_to_measure_s(most_s, farthest_s, lines_.size());
  if (lines_.size() == 1) return measure_alone(0, until_s);
  const double left_s = until_s - monotonic_seconds();
  for (size_t i = 0; i < lines_.size(); ++i) {
    WEFT_TRY_STATUS(measure_alone(i, monotonic_seconds() + kAloneShare * left_s));
  }
  return measure_together(until_s);
}

Status Prober::measure_alone(size_t index, double until_s) {
  Line& line = *lines_[index];
  const double start = monotonic_seconds();
  TrainSeries series({order_.max_bytes, until_s - start, line.way.round_trip_s});
  while (const auto train = series.next(monotonic_seconds() - start)) {
    WEFT_TRY(const auto got, line.train(*train));
    series.add(*train, got);
    // The shortest of those spread over time: what delays one may delay all of a moment.
    WEFT_TRY_STATUS(line.measure_round_trip());
  }
  line.way.trains = series.trains();
  if (lines_.size() > 1) line.way.alone_bytes_s = series.bytes_s();
  return {};
}

// Both send as long as the faster one's largest train takes it alone: so they end together, whoever
// gets more of the line. What one core too few takes from both is no line: the better round counts.
Status Prober::measure_together(double until_s) {
  double seconds = kMostTogetherS;
  for (const auto& line : lines_) {
    if (line->way.alone_bytes_s <= 0) return {};  // nothing to compare with
    seconds = std::min(seconds, static_cast<double>(order_.max_bytes) / line->way.alone_bytes_s);
  }
  double best = 0;
  for (int round = 0; round < kTogetherRounds; ++round) {
    const double trip_s = std::max(lines_[0]->way.round_trip_s, lines_[1]->way.round_trip_s);
    const double left_s = until_s - monotonic_seconds() - trip_s;
    if (left_s < kLeastTogetherS || (round > 0 && left_s < seconds)) break;
    const TrainSeries::Train train{order_.max_bytes, std::min(seconds, left_s)};
    Result<std::optional<TrainRate>> got[2] = {std::optional<TrainRate>(),
                                               std::optional<TrainRate>()};
    std::thread second([&] {
      os::name_thread("weft-probe-2");
      got[1] = lines_[1]->train(train);
    });
    got[0] = lines_[0]->train(train);
    second.join();
    for (const auto& one : got) {
      if (!one.ok()) return one.error();
    }
    if (!*got[0] || !*got[1]) continue;
    const double sum = (*got[0])->bytes_s() + (*got[1])->bytes_s();
    if (sum <= best) continue;
    best = sum;
    for (size_t i = 0; i < 2; ++i) lines_[i]->way.together_bytes_s = (*got[i])->bytes_s();
  }
  return {};
}

ProbeFinding Prober::finding(const Status& status) const {
  using Outcome = ProbeFinding::Outcome;
  ProbeFinding found;
  if (status.ok()) {
    for (const auto& line : lines_) found.ways.push_back(line->way);
    return found;
  }
  found.why = status.error().message;
  found.outcome =
      status.error().code == Code::kCancelled ? Outcome::kGivenUp : Outcome::kUnreachable;
  for (const auto& line : lines_) {
    if (!line->failed) continue;
    found.peer = line->way.peer;
    if (line->busy && found.outcome != Outcome::kGivenUp) found.outcome = Outcome::kBusy;
    break;
  }
  return found;
}

}  // namespace weft::net
