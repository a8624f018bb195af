#include "broker/links/probe_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace weft::broker {
namespace {

// Latencies of one local network to a landmark differ by less than it is wide, and by noise.
constexpr double kNoiseS = 0.0005, kNoiseShare = 0.01;
// Sites before and after one in that order: of a town's ten thousand not all are compared.
constexpr size_t kMostCompared = 32;
// Flows of very different rates do not tell whether they share a line.
constexpr double kLeastRatio = 0.4;
// Bounds of a latency as close as that, one over the other, need no probe.
constexpr double kTold = 1.2;

}  // namespace

ProbePlan::ProbePlan(LinkBook& book, int64_t now_ms)
    : book_(book), options_(book.options_), now_ms_(now_ms), s_(book.structure()) {
  for (const auto& [id, run] : book_.running_) {
    if (const auto prober = s_.find(run.task.prober)) occupy(*prober);
    for (const std::string& target : run.task.targets) {
      if (const auto found = s_.find(target)) occupy(*found);
    }
    taken_jobs_.insert(run.jobs.begin(), run.jobs.end());
  }
}

std::vector<ProbeTask> ProbePlan::make() {
  if (s_.size() < 2) return {};
  depended();
  choose_landmarks();
  landmarks();
  const Seen sites = seen();
  neighbours(sites);
  inside_sites();
  lines();
  nearest(sites);
  refresh();
  return std::move(tasks_);
}

void ProbePlan::occupy(size_t peer) {
  taken_sites_.insert(s_.site_of(peer));
}

bool ProbePlan::free(size_t peer) const {
  return s_.peer(peer).idle && !taken_sites_.contains(s_.site_of(peer));
}

bool ProbePlan::strangers() const {
  if (s_.size() > options_.landmarks + 1) return false;  // not measured whole
  for (size_t a = 0; a < s_.size(); ++a) {
    if (s_.ways_from(a).size() + 1 < s_.size()) return true;
  }
  return false;
}

bool ProbePlan::site_works(size_t site) const {
  return std::any_of(s_.members(site).begin(), s_.members(site).end(),
                     [&](size_t member) { return s_.peer(member).busy; });
}

int64_t ProbePlan::rested_ms(size_t site) const {
  int64_t until = 0;
  for (const size_t member : s_.members(site)) {
    const auto found = book_.rest_until_ms_.find(s_.peer(member).id);
    if (found != book_.rest_until_ms_.end()) until = std::max(until, found->second);
  }
  return until;
}

bool ProbePlan::may_disturb(size_t site, std::set<std::string>& jobs) const {
  if (now_ms_ < rested_ms(site)) return false;
  for (const size_t member : s_.members(site)) {
    const LinkPeer& peer = s_.peer(member);
    if (!peer.busy || peer.job.empty()) continue;
    const auto rest = book_.job_rest_until_ms_.find(peer.job);
    if (rest != book_.job_rest_until_ms_.end() && now_ms_ < rest->second) return false;
    if (taken_jobs_.contains(peer.job)) return false;
    jobs.insert(peer.job);
  }
  return true;
}

bool ProbePlan::start(std::vector<size_t> peers, ProbeTask task) {
  if (full() || (!book_.running_.empty() && strangers())) return false;
  task.max_bytes = options_.max_bytes;
  task.max_ms = options_.max_ms;
  std::set<std::string> jobs;
  for (const size_t peer : peers) {
    if (!free(peer)) return false;
    if (!site_works(s_.site_of(peer))) continue;
    if (!may_disturb(s_.site_of(peer), jobs)) return false;
    task.max_bytes = options_.busy_max_bytes;
    task.max_ms = options_.busy_max_ms;
  }
  for (const size_t peer : peers) occupy(peer);
  task.id = book_.next_id_++;
  taken_jobs_.insert(jobs.begin(), jobs.end());
  book_.running_.emplace(task.id, LinkBook::Running{task, now_ms_, std::move(jobs)});
  tasks_.push_back(std::move(task));
  return true;
}

bool ProbePlan::stale(size_t from, size_t to) const {
  const LinkEntry* entry = book_.find({s_.peer(from).id, s_.peer(to).id});
  return entry == nullptr || now_ms_ - entry->record.probed_ms() >= options_.refresh_ms;
}

void ProbePlan::want_direction(size_t from, size_t to) {
  const LinkPeer &sender = s_.peer(from), &receiver = s_.peer(to);
  const auto found = book_.trouble_.find({sender.id, receiver.id});
  int failures = 0;
  if (found != book_.trouble_.end()) {
    if (now_ms_ < found->second.until_ms) return;
    failures = found->second.failures;
  }
  // Behind an address translator a peer can dial but not be dialled: then the other end asks.
  const bool turn = sender.dialable && (!receiver.dialable || failures % 2 == 1);
  if (!turn && !receiver.dialable) return;
  ProbeTask task;
  task.prober = turn ? receiver.id : sender.id;
  task.targets = {turn ? sender.id : receiver.id};
  task.receive = turn;
  start({from, to}, std::move(task));
}

void ProbePlan::want(size_t a, size_t b) {
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    if (s_.way(from, to) == nullptr) want_direction(from, to);
  }
}

bool ProbePlan::in_trouble(size_t from, size_t to) const {
  const auto found = book_.trouble_.find({s_.peer(from).id, s_.peer(to).id});
  return found != book_.trouble_.end() && now_ms_ < found->second.until_ms;
}

bool ProbePlan::may_want(size_t a, size_t b) const {
  if (!s_.peer(a).idle || !s_.peer(b).idle) return false;
  if (!s_.peer(a).dialable && !s_.peer(b).dialable) return false;
  return !in_trouble(a, b) || !in_trouble(b, a);
}

void ProbePlan::depended() {
  for (const LinkKey& way : book_.depended_) {
    const auto from = s_.find(way.first), to = s_.find(way.second);
    if (!from || !to || !free(*from) || !free(*to)) continue;
    const Structure::Way* known = s_.way(*from, *to);
    if (known == nullptr || stale(*from, *to)) want_direction(*from, *to);
  }
}

// The first is the first there is; then, by turns, the one with the best rates so far (a slow
// landmark hides what others can) and the one farthest from all landmarks (it bounds latencies).
// A landmark stays one while it is there.
void ProbePlan::choose_landmarks() {
  std::vector<std::string>& chosen = book_.landmarks_;
  while (chosen.size() < std::min(options_.landmarks, s_.size())) {
    std::optional<size_t> best;
    double best_score = -1;
    size_t unknown = 0;
    for (size_t i = 0; i < s_.size(); ++i) {
      const LinkPeer& peer = s_.peer(i);
      if (!peer.idle || std::find(chosen.begin(), chosen.end(), peer.id) != chosen.end()) continue;
      double score = 0;
      if (!chosen.empty()) {
        double near = 1e9;
        for (const std::string& id : chosen) {
          const auto mark = s_.find(id);
          const auto latency = mark ? s_.site_latency_s(s_.site_of(i), *mark) : std::nullopt;
          if (latency) near = std::min(near, *latency);
        }
        if (near >= 1e9) {
          ++unknown;
          continue;
        }
        score = chosen.size() % 2 == 1 ? std::min(s_.up(i), s_.down(i)) + near * 1e-6 : near;
      }
      if (score > best_score) best = i, best_score = score;
    }
    // Not before most have been measured against those there are.
    if (!best || unknown * 4 > s_.size()) break;
    chosen.push_back(s_.peer(*best).id);
  }
  for (const std::string& id : chosen) {
    if (const auto mark = s_.find(id)) landmarks_.push_back(*mark);
  }
}

void ProbePlan::landmarks() {
  for (const size_t mark : landmarks_) {
    for (size_t i = 0; i < s_.size() && free(mark); ++i) {
      if (i != mark && free(i)) want(i, mark);
    }
  }
}

bool ProbePlan::is_landmark(size_t peer) const {
  return std::find(landmarks_.begin(), landmarks_.end(), peer) != landmarks_.end();
}

double ProbePlan::Seen::width(double from_first_s, const LinkOptions& options) {
  return options.lan_latency_s + kNoiseS + kNoiseShare * from_first_s;
}

ProbePlan::Seen ProbePlan::seen() const {
  if (landmarks_.empty() || full()) return {LandmarkTable(s_, {}, {}), {}, {}};
  std::vector<size_t> sites(s_.sites());
  std::iota(sites.begin(), sites.end(), size_t{0});
  Seen seen{LandmarkTable(s_, landmarks_, sites), {}, {}};
  for (const size_t site : sites) {
    const double first_s = seen.table.latency_s(site, 0);
    if (!std::isnan(first_s)) seen.ranked.emplace_back(first_s, site);
  }
  std::sort(seen.ranked.begin(), seen.ranked.end());
  seen.ranks.resize(seen.ranked.size());
  std::iota(seen.ranks.begin(), seen.ranks.end(), size_t{0});
  std::sort(seen.ranks.begin(), seen.ranks.end(),
            [&](size_t a, size_t b) { return seen.ranked[a].second < seen.ranked[b].second; });
  return seen;
}

size_t ProbePlan::tried_by(size_t peer) const {
  size_t tried = 0;
  for (const auto& [other, way] : s_.ways_from(peer)) {
    if (!is_landmark(other) && s_.site_of(other) != s_.site_of(peer)) ++tried;
  }
  return tried;
}

// Sites, most of them single peers at first, that may be one: their latencies to the landmarks
// are alike. Sorted by the first landmark, so that only those near in that order are compared.
void ProbePlan::neighbours(const Seen& seen) {
  for (const size_t rank : seen.ranks) try_beside(seen, rank);
}

void ProbePlan::try_beside(const Seen& seen, size_t rank) {
  const auto [own, site] = seen.ranked[rank];
  const size_t speaker = s_.members(site).front();
  if (full() || !free(speaker)) return;
  size_t tried = tried_by(speaker);
  if (tried >= options_.neighbours) return;
  const double width = Seen::width(own, options_);
  std::vector<std::pair<double, size_t>> beside;
  const auto compare = [&](size_t at) {
    const auto& [theirs, other] = seen.ranked[at];
    if (std::abs(theirs - own) > width) return false;
    if (s_.between(site, other) != nullptr || s_.between(other, site) != nullptr) return true;
    const LandmarkTable::Bounds bounds = seen.table.bounds(site, other);
    if (bounds.low_s <= width) beside.emplace_back(bounds.low_s, other);
    return true;
  };
  const size_t first = rank - std::min(rank, kMostCompared);
  for (size_t at = rank; at > first && compare(at - 1);) --at;
  const size_t last = std::min(seen.ranked.size(), rank + 1 + kMostCompared);
  for (size_t at = rank + 1; at < last && compare(at);) ++at;
  std::sort(beside.begin(), beside.end());
  for (const auto& [low, other] : beside) {
    if (tried++ >= options_.neighbours || !free(speaker)) return;
    want(speaker, s_.members(other).front());
  }
}

// A plan's order of sites is made of short ways: the middle of wide bounds hides which are.
void ProbePlan::nearest(const Seen& seen) {
  if (landmarks_.size() < std::min(options_.landmarks, s_.size())) return;
  for (const size_t rank : seen.ranks) try_nearest(seen, rank);
}

void ProbePlan::try_nearest(const Seen& seen, size_t rank) {
  const size_t site = seen.ranked[rank].second, speaker = s_.members(site).front();
  if (full() || !free(speaker)) return;
  const size_t most = options_.neighbours + options_.nearest;
  size_t tried = tried_by(speaker);
  if (tried >= most) return;
  std::vector<std::pair<double, size_t>> near;
  const size_t last = std::min(seen.ranked.size(), rank + 1 + kMostCompared);
  for (size_t at = rank - std::min(rank, kMostCompared); at < last; ++at) {
    const size_t other = seen.ranked[at].second;
    if (other == site) continue;
    const LandmarkTable::Bounds bounds = seen.table.bounds(site, other);
    // One may not be reached; of fewer they say little yet.
    if (bounds.landmarks < 2 || bounds.landmarks + 1 < landmarks_.size()) continue;
    if (bounds.high_s <= kTold * bounds.low_s) continue;
    if (s_.between(site, other) != nullptr || s_.between(other, site) != nullptr) continue;
    if (may_want(speaker, s_.members(other).front())) near.emplace_back(bounds.low_s, other);
  }
  std::sort(near.begin(), near.end());
  for (const auto& [low, other] : near) {
    if (tried++ >= most || !free(speaker)) return;
    want(speaker, s_.members(other).front());
  }
}

// What a peer can inside its site: against the first of them, that one against the second.
void ProbePlan::inside_sites() {
  for (size_t site = 0; site < s_.sites(); ++site) {
    const auto& members = s_.members(site);
    for (size_t i = 1; i < members.size(); ++i) {
      if (!s_.local_measured(members[i])) want(members[i], members.front());
    }
  }
}

void ProbePlan::lines() {
  for (size_t i = 0; i < s_.size(); ++i) {
    if (!free(i)) continue;
    line_test(i, false);
    line_test(i, true);
  }
}

void ProbePlan::line_test(size_t peer, bool down) {
  const LineKey key{s_.peer(peer).id, down};
  if (const auto known = book_.lines_.find(key);
      known != book_.lines_.end() && now_ms_ - known->second.time_ms < options_.refresh_ms) {
    return;
  }
  if (const auto trouble = book_.line_trouble_.find(key);
      trouble != book_.line_trouble_.end() && now_ms_ < trouble->second.until_ms) {
    return;
  }
  // The two best, of two sites if there are: else they might share a line of their own.
  std::vector<std::pair<double, size_t>> others;
  for (const size_t mark : landmarks_) {
    const Structure::Way* way = down ? s_.way(mark, peer) : s_.way(peer, mark);
    if (way == nullptr || way->bytes_s <= 0 || !s_.peer(mark).dialable) continue;
    if (s_.site_of(mark) == s_.site_of(peer)) continue;
    others.emplace_back(-way->bytes_s, mark);
  }
  std::sort(others.begin(), others.end());
  const auto usable = [&](size_t k, bool apart) {
    const auto& [best, first] = others.front();
    const auto& [rate, second] = others[k];  // both negative
    return rate <= kLeastRatio * best && (s_.site_of(first) != s_.site_of(second)) == apart;
  };
  for (const bool apart : {true, false}) {  // among two sites there is no better pair
    for (size_t k = 1; k < others.size(); ++k) {
      if (!usable(k, apart)) continue;
      const size_t first = others.front().second, second = others[k].second;
      ProbeTask task;
      task.prober = key.peer;
      task.targets = {s_.peer(first).id, s_.peer(second).id};
      task.receive = down;
      start({peer, first, second}, std::move(task));
      return;
    }
  }
}

// What structure rests on is kept fresh; other pairs grow old and are forgotten.
void ProbePlan::refresh() {
  for (size_t a = 0; a < s_.size() && !full(); ++a) {
    if (!free(a)) continue;
    for (const auto& [b, way] : s_.ways_from(a)) {
      if (!is_landmark(a) && !is_landmark(b) && s_.site_of(a) != s_.site_of(b)) continue;
      if (free(a) && free(b) && stale(a, b)) want_direction(a, b);
    }
  }
}

}  // namespace weft::broker
