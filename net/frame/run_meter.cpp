#include "net/frame/run_meter.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace weft::net {

void RunMeter::writes(double now_s, uint64_t bytes, const std::optional<MessageKey>& ends) {
  if (!open_) open_ = Written{now_s, now_s, 0, 0, {}};
  open_->bytes += bytes;
  if (!ends) return;
  open_->whole_bytes = open_->bytes;
  open_->last = *ends;
  open_->written_s = now_s;
  if (now_s - open_->since_s >= kCutS) end_run();
}

void RunMeter::lull() {
  if (open_) end_run();
}

void RunMeter::end_run() {
  if (open_->whole_bytes > 0) written_.push_back(*open_);
  open_.reset();
}

bool RunMeter::awaits(const MessageKey& key) const {
  return std::any_of(written_.begin(), written_.end(),
                     [&](const Written& run) { return run.last == key; });
}

// Messages arrive whole in the order of their last bytes: runs before this one are done, too.
std::optional<RunMeter::Run> RunMeter::acknowledged(const MessageKey& key, double now_s,
                                                    double shortest_s, double waited_s) {
  const auto found = std::find_if(written_.begin(), written_.end(),
                                  [&](const Written& run) { return run.last == key; });
  if (found == written_.end()) return std::nullopt;
  const Written run = *found;
  written_.erase(written_.begin(), found + 1);
  // What the other side says of its clock makes no message arrive before it was written.
  const double seconds = std::max(now_s - shortest_s - waited_s, run.written_s) - run.since_s;
  if (seconds < std::max(kLeastS, shortest_s) || run.whole_bytes < kLeastBytes) return std::nullopt;
  const double rate = static_cast<double>(run.whole_bytes) / seconds;
  carried_.push_back({now_s, rate});
  if (carried_.size() > kMaxRuns) carried_.pop_front();
  ++runs_;
  return Run{run.since_s, rate};
}

void RunMeter::on_disconnected() {
  open_.reset();
  written_.clear();
}

double RunMeter::bytes_s(double now_s) const {
  std::vector<double> rates;
  for (const Carried& run : carried_) {
    if (now_s - run.time_s <= kMemoryS) rates.push_back(run.bytes_s);
  }
  if (rates.size() < kLeastRuns) return 0;
  const auto quartile = rates.begin() + static_cast<std::ptrdiff_t>(3 * (rates.size() - 1) / 4);
  std::nth_element(rates.begin(), quartile, rates.end());
  return *quartile;
}

uint64_t PingTimes::ask(double now_s) {
  if (times_.size() == kMost) times_.pop_front();
  times_.push_back(now_s);
  return ++asked_;
}

std::optional<double> PingTimes::answered(uint64_t number) {
  if (number > asked_ || asked_ - number >= times_.size()) return std::nullopt;
  const auto behind = static_cast<size_t>(asked_ - number);  // pings that went later
  const double time_s = times_[times_.size() - 1 - behind];
  times_.erase(times_.begin(), times_.end() - static_cast<ptrdiff_t>(behind));
  return time_s;
}

void LatelyLeast::note(double now_s, double seconds) {
  if (!now_ || now_s - since_s_ > kHalfS) {
    before_ = now_s - since_s_ > 2 * kHalfS ? std::nullopt : now_;
    now_ = seconds;
    since_s_ = now_s;
  }
  now_ = std::min(*now_, seconds);
}

std::optional<double> LatelyLeast::seconds() const {
  return before_ ? std::min(*now_, *before_) : now_;
}

double WayBack::note(double now_s, int64_t at_us) {
  const double behind_s = now_s - 1e-6 * static_cast<double>(at_us);
  if (least_.seconds() && std::abs(behind_s - *least_.seconds()) > kMostS) least_ = {};
  least_.note(now_s, behind_s);
  return behind_s - *least_.seconds();
}

}  // namespace weft::net
