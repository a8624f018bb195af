#include "broker/planner/cut_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "broker/planner/cut_bits.h"
#include "broker/planner/cut_codecs.h"

namespace weft::broker {
namespace {

// No stage is done sooner than if the fastest peers there may be shared all work evenly.
double least_slowest_stage(const Problem& problem) {
  std::vector<double> speeds;
  for (size_t peer = 0; peer < problem.peers(); ++peer) {
    const double whole = problem.work(static_cast<int32_t>(peer), 0, problem.chain.units);
    if (whole > 0) speeds.push_back(1 / whole);
  }
  std::sort(speeds.begin(), speeds.end(), std::greater<>());
  speeds.resize(std::min(speeds.size(), static_cast<size_t>(std::max(problem.most_stages, 1))));
  const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  return sum > 0 ? 1 / sum : 0;
}

}  // namespace

CutCosts::CutCosts(const Problem& problem) : problem_(problem) {
  if (!problem.compressor) {
    Kind& kind = kinds_.emplace_back();
    kind.there_bytes = problem.chain.forward_bytes;
    kind.back_bytes = problem.chain.backward_bytes;
    kind.codec_s.assign(kind.there_bytes.size(), 0.0);
    kind.end_s = kind.codec_s;
    for (size_t cut = 0; cut < kind.there_bytes.size(); ++cut) {
      kind.way_s.push_back(std::max(kind.there_bytes[cut], kind.back_bytes[cut]));
    }
    sort(kind);
    return;
  }
  const double slowest_s = least_slowest_stage(problem);
  for (const auto& [from, to] : tell_apart()) {
    Kind& kind = kinds_.emplace_back();
    kind.rate = coefficient(from, to);
    fill(kind, from, to, slowest_s);
    sort(kind);
  }
}

double CutCosts::both(double there_s, double back_s) const {
  const bool phases = problem_.schedule.kind == job::PipelineSchedule::kGPipe;
  return phases ? there_s + back_s : std::max(there_s, back_s);
}

double CutCosts::coefficient(int32_t from, int32_t to) const {
  const auto a = static_cast<size_t>(from), b = static_cast<size_t>(to);
  return both(problem_.network.seconds_per_byte(a, b), problem_.network.seconds_per_byte(b, a));
}

std::vector<std::pair<int32_t, int32_t>> CutCosts::tell_apart() {
  kind_of_.assign(problem_.peers() * problem_.peers(), 0);
  std::vector<std::pair<int32_t, int32_t>> ways;
  if (!each_alike(ways)) by_rate(ways);
  if (ways.empty()) ways.emplace_back(0, 0);  // one peer
  return ways;
}

// False where there are too many kinds.
bool CutCosts::each_alike(std::vector<std::pair<int32_t, int32_t>>& ways) {
  const Network& network = problem_.network;
  const auto peers = static_cast<int32_t>(problem_.peers());
  std::map<std::array<double, 8>, uint8_t> known;
  for (int32_t from = 0; from < peers; ++from) {
    for (int32_t to = 0; to < peers; ++to) {
      if (from == to) continue;
      const auto a = static_cast<size_t>(from), b = static_cast<size_t>(to);
      const MemorySpeed sends = problem_.memory_speed_of(a), takes = problem_.memory_speed_of(b);
      const std::array<double, 8> key{
          network.latency_s(a, b), network.seconds_per_byte(a, b), sends.op_s, sends.byte_s,
          network.latency_s(b, a), network.seconds_per_byte(b, a), takes.op_s, takes.byte_s};
      const auto [kind, added] = known.try_emplace(key, static_cast<uint8_t>(known.size()));
      kind_of_[pair(from, to)] = kind->second;
      if (!added) continue;
      if (known.size() > kMostKinds) return false;
      ways.emplace_back(from, to);
    }
  }
  return true;
}

// Equal steps of the logarithm; ways that delay nothing are a kind of their own, the first.
void CutCosts::by_rate(std::vector<std::pair<int32_t, int32_t>>& ways) {
  const auto peers = static_cast<int32_t>(problem_.peers());
  double least = HUGE_VAL, most = 0;
  for (int32_t from = 0; from < peers; ++from) {
    for (int32_t to = 0; to < peers; ++to) {
      const double rate = from == to ? 0 : coefficient(from, to);
      if (rate <= 0) continue;
      least = std::min(least, rate);
      most = std::max(most, rate);
    }
  }
  const double steps = static_cast<double>(kMostKinds - 1);
  const double step = std::max(std::log(most / least) / steps, 1e-9);
  std::vector<int32_t> kind_at(kMostKinds, -1);
  ways.clear();
  for (int32_t from = 0; from < peers; ++from) {
    for (int32_t to = 0; to < peers; ++to) {
      if (from == to) continue;
      const double rate = coefficient(from, to);
      const double along = rate > 0 ? 1 + std::floor(std::log(rate / least) / step) : 0;
      int32_t& kind = kind_at[static_cast<size_t>(std::min(along, steps))];
      if (kind < 0) {
        kind = static_cast<int32_t>(ways.size());
        ways.emplace_back(from, to);
      }
      kind_of_[pair(from, to)] = static_cast<uint8_t>(kind);
    }
  }
}

void CutCosts::fill(Kind& kind, int32_t from, int32_t to, double slowest_s) const {
  const auto a = static_cast<size_t>(from), b = static_cast<size_t>(to);
  const double there = problem_.network.seconds_per_byte(a, b);
  const double back = problem_.network.seconds_per_byte(b, a);
  for (int32_t cut = 0; cut <= problem_.chain.units; ++cut) {
    const CutMessages messages = messages_over(problem_, from, to, cut, slowest_s);
    kind.there_bytes.push_back(messages.there);
    kind.back_bytes.push_back(messages.back);
    kind.codec_s.push_back(messages.sender_s() + messages.receiver_s());
    kind.way_s.push_back(both(there * messages.there, back * messages.back));
    kind.end_s.push_back(std::max(messages.sender_s(), messages.receiver_s()));
  }
}

void CutCosts::sort(Kind& kind) const {
  const size_t cuts = kind.there_bytes.size(), words = words_for(cuts);
  std::vector<int32_t> inner(cuts > 2 ? cuts - 2 : 0);
  std::iota(inner.begin(), inner.end(), 1);
  std::stable_sort(inner.begin(), inner.end(), [&](int32_t a, int32_t b) {
    return seconds(kind, kind.rate, a) < seconds(kind, kind.rate, b);
  });
  kind.lightest.assign((inner.size() + 1) * words, 0);
  for (size_t count = 0; count < inner.size(); ++count) {
    const uint64_t* before = &kind.lightest[count * words];
    uint64_t* after = &kind.lightest[(count + 1) * words];
    std::copy(before, before + words, after);
    set_cut(after, inner[count]);
    kind.sorted_s.push_back(seconds(kind, kind.rate, inner[count]));
  }
}

// Over another way of the kind all cuts count more or less in proportion.
size_t CutCosts::allowed(const Kind& kind, double coefficient, double most_s) {
  if (coefficient > 0) {
    most_s = most_s * kind.rate / coefficient;
  } else if (kind.rate > 0) {
    most_s = HUGE_VAL;
  }
  return static_cast<size_t>(std::upper_bound(kind.sorted_s.begin(), kind.sorted_s.end(), most_s) -
                             kind.sorted_s.begin());
}

double CutCosts::slowest(const Kind& kind, double coefficient) {
  if (kind.sorted_s.empty()) return 0;
  constexpr double kRounding = 1 + 1e-9;  // so that allowed() has all cuts
  return kRounding * kind.sorted_s.back() * (kind.rate > 0 ? coefficient / kind.rate : 1);
}

}  // namespace weft::broker
