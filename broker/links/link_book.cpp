#include "broker/links/link_book.h"

#include <algorithm>
#include <cmath>

#include "broker/links/probe_plan.h"

namespace weft::broker {
namespace {

constexpr size_t kMaxDepended = 4096;
constexpr int64_t kWorkingMs = 60000;  // since the last report of a way: work still uses it

bool is_rate(double bytes_s) {
  return std::isfinite(bytes_s) && bytes_s > 0 && bytes_s < 1e12;
}

// Each of its links is of a target, of each once.
bool as_asked(const ProbeTask& task, const ProbeResult& result) {
  std::set<std::string> told;
  return std::all_of(result.links.begin(), result.links.end(), [&](const ProbedLink& link) {
    return std::find(task.targets.begin(), task.targets.end(), link.target) != task.targets.end() &&
           told.insert(link.target).second;
  });
}

}  // namespace

void LinkBook::set_peers(const std::vector<LinkPeer>& peers) {
  bool changed = peers.size() != peers_.size();
  std::map<std::string, LinkPeer> fresh;
  for (const LinkPeer& peer : peers) {
    const auto known = peers_.find(peer.id);
    changed = changed || known == peers_.end() || known->second.address != peer.address;
    fresh.emplace(peer.id, peer);
  }
  if (!changed) {
    for (auto& [id, peer] : fresh) peers_.at(id) = std::move(peer);  // the structure points to them
    return;
  }
  structure_.reset();
  peers_ = std::move(fresh);
  const auto gone = [&](const std::string& id) { return !peers_.contains(id); };
  const auto way_gone = [&](const LinkKey& way) { return gone(way.first) || gone(way.second); };
  std::erase_if(records_, [&](const auto& e) { return way_gone(e.first); });
  std::erase_if(trouble_, [&](const auto& e) { return way_gone(e.first); });
  std::erase_if(lines_, [&](const auto& e) { return gone(e.first.peer); });
  std::erase_if(line_trouble_, [&](const auto& e) { return gone(e.first.peer); });
  std::erase_if(rest_until_ms_, [&](const auto& e) { return gone(e.first); });
  std::erase_if(depended_, way_gone);
  std::erase_if(worked_ms_, [&](const auto& e) { return way_gone(e.first); });
  std::erase_if(worked_back_ms_, [&](const auto& e) { return way_gone(e.first); });
  site_of_.clear();
  std::erase_if(landmarks_, gone);
}

void LinkBook::depend_on(const std::vector<LinkKey>& ways) {
  if (depended_.size() + ways.size() > kMaxDepended) depended_.clear();
  for (const LinkKey& way : ways) {
    if (way.first != way.second) depended_.insert(way);
  }
}

const Structure& LinkBook::structure() const {
  if (!structure_) structure_.emplace(peers_, records_, lines_, options_);
  return *structure_;
}

std::vector<ProbeTask> LinkBook::next(int64_t now_ms) {
  if (!due(now_ms)) return {};
  next_ms_ = now_ms + options_.every_ms *
                          static_cast<int64_t>(1 + peers_.size() / options_.peers_per_period);
  for (auto it = running_.begin(); it != running_.end();) {
    if (now_ms - it->second.since_ms < options_.task_ms) {
      ++it;
      continue;
    }
    ProbeResult silence;
    silence.outcome = ProbeResult::Outcome::kUnreachable;
    const Running lost = it->second;
    it = running_.erase(it);
    failed(lost.task, silence, now_ms);
    rest(lost, lost.task.max_ms, now_ms);
  }
  forget_old(now_ms);
  std::erase_if(job_rest_until_ms_, [&](const auto& rest) { return rest.second <= now_ms; });
  return ProbePlan(*this, now_ms).make();
}

void LinkBook::forget_old(int64_t now_ms) {
  for (auto* worked : {&worked_ms_, &worked_back_ms_}) {
    std::erase_if(*worked, [&](const auto& e) { return now_ms - e.second > kWorkingMs; });
  }
  for (auto it = records_.begin(); it != records_.end();) {
    LinkEntry& entry = it->second;
    if (!entry.fit || now_ms - entry.fit->time_ms <= options_.max_age_ms) {
      ++it;
      continue;
    }
    it = records_.erase(it);
    structure_.reset();
  }
}

std::vector<LinkKey> LinkBook::add(const std::string& prober, const ProbeResult& result,
                                   int64_t now_ms) {
  const auto found = running_.find(result.task);
  if (found == running_.end() || found->second.task.prober != prober) return {};
  const Running run = std::move(found->second);
  running_.erase(found);
  rest(run, now_ms - run.since_ms, now_ms);
  std::vector<LinkKey> changed;
  bool answered = false;
  if (result.outcome == ProbeResult::Outcome::kMeasured && as_asked(run.task, result)) {
    changed = measured(run.task, result, now_ms);
    answered =
        run.task.targets.size() == 2 ? test_line(run.task, result, now_ms) : !changed.empty();
  }
  if (!answered) failed(run.task, result, now_ms);
  return changed;
}

// After a probe the lines that work shares rest. The time is the book's own: who is probed cannot
// shorten it.
void LinkBook::rest(const Running& run, int64_t took_ms, int64_t now_ms) {
  const double factor = 1 / std::max(options_.busy_share, 1e-6) - 1;
  const auto until =
      now_ms +
      static_cast<int64_t>(std::ceil(static_cast<double>(std::max<int64_t>(took_ms, 1)) * factor));
  rest_until_ms_[run.task.prober] = until;
  for (const std::string& target : run.task.targets) rest_until_ms_[target] = until;
  for (const std::string& job : run.jobs) job_rest_until_ms_[job] = until;
}

std::vector<LinkKey> LinkBook::measured(const ProbeTask& task, const ProbeResult& result,
                                        int64_t now_ms) {
  std::vector<LinkKey> changed;
  for (const ProbedLink& link : result.links) {
    const LinkKey way =
        task.receive ? LinkKey(link.target, task.prober) : LinkKey(task.prober, link.target);
    LinkEntry& entry = records_[way];
    bool known = false;
    if (task.targets.size() == 1 || !link.trains.empty()) {
      known = entry.record.add(link, now_ms);
    } else {
      // A test that had no time for trains is no measurement of a way.
      entry.record.add_traffic({0, link.round_trip_s}, now_ms);
      known = !entry.record.empty();
    }
    if (!known) continue;
    entry.fit = entry.record.fit();
    trouble_.erase(way);
    changed.push_back(way);
  }
  std::erase_if(records_, [](const auto& e) { return e.second.record.empty(); });
  structure_.reset();
  return changed;
}

// False: it tells nothing of the line.
bool LinkBook::test_line(const ProbeTask& task, const ProbeResult& result, int64_t now_ms) {
  double alone = 0, together = 0;
  for (const ProbedLink& link : result.links) {
    if (!is_rate(link.alone_bytes_s) || !is_rate(link.together_bytes_s)) return false;
    alone += link.alone_bytes_s;
    together += link.together_bytes_s;
  }
  if (result.links.size() != 2) return false;
  const LineKey line{task.prober, task.receive};
  lines_[line] = {now_ms, together / alone, together};
  line_trouble_.erase(line);
  return true;
}

void LinkBook::failed(const ProbeTask& task, const ProbeResult& result, int64_t now_ms) {
  const bool busy = result.outcome == ProbeResult::Outcome::kBusy;
  const auto note = [&](Trouble& trouble) {
    if (!busy) ++trouble.failures;
    const int64_t wait = busy
                             ? options_.busy_retry_ms
                             : options_.retry_ms << std::min(std::max(trouble.failures - 1, 0), 10);
    trouble.until_ms = now_ms + std::min(wait, options_.refresh_ms);
  };
  if (task.targets.size() == 2) {
    note(line_trouble_[{task.prober, task.receive}]);
    return;
  }
  const std::string& target = task.targets.front();
  note(trouble_[task.receive ? LinkKey(target, task.prober) : LinkKey(task.prober, target)]);
}

std::vector<LinkKey> LinkBook::add_traffic(const LinkKey& way, const Carried& carried,
                                           int64_t now_ms) {
  if (way.first == way.second || !knows(way.first) || !knows(way.second)) return {};
  const auto [found, fresh] = records_.try_emplace(way);
  LinkEntry& entry = found->second;
  size_t flows = 1;
  if (is_rate(carried.bytes_s)) {
    worked_ms_[way] = worked_back_ms_[{way.second, way.first}] = now_ms;
    if (entry.record.falls_short(carried, now_ms)) flows = flows_beside(way, now_ms);
  }
  const std::optional<LinkFit> before = entry.fit;
  if (!entry.record.add_traffic(carried, now_ms, static_cast<double>(flows))) {
    if (fresh) records_.erase(found);
    return {};
  }
  entry.fit = entry.record.fit();
  std::vector<LinkKey> changed = {way};
  if (before && entry.fit && entry.fit->seconds_per_byte > before->seconds_per_byte) {
    line_carries({way.first, false}, 1 / entry.fit->seconds_per_byte);
    line_carries({way.second, true}, 1 / entry.fit->seconds_per_byte);
  }
  const auto back = records_.find({way.second, way.first});
  if (before && entry.fit && entry.fit->latency_s > before->latency_s && back != records_.end()) {
    back->second.record.set_trip(2 * entry.fit->latency_s, now_ms);
    back->second.fit = back->second.record.fit();
    changed.push_back(back->first);
  }
  structure_.reset();
  return changed;
}

std::vector<std::string> LinkBook::neighbours(const std::string& peer, int64_t now_ms) {
  if (site_of_.empty() || now_ms - sites_ms_ >= kWorkingMs) {
    sites_ms_ = now_ms;
    site_of_.clear();
    members_.assign(structure().sites(), {});
    for (size_t i = 0; i < structure().size(); ++i) {
      site_of_[structure().peer(i).id] = structure().site_of(i);
      members_[structure().site_of(i)].push_back(structure().peer(i).id);
    }
  }
  const auto found = site_of_.find(peer);
  return found == site_of_.end() ? std::vector<std::string>{peer} : members_[found->second];
}

size_t LinkBook::flows_beside(const LinkKey& way, int64_t now_ms) {
  const auto from = neighbours(way.first, now_ms), to = neighbours(way.second, now_ms);
  const bool inside = std::find(from.begin(), from.end(), way.second) != from.end();
  // Inside a site each peer has a line of its own; beyond it they share one.
  const auto count = [&](const std::map<LinkKey, int64_t>& worked, const std::string& end,
                         const std::vector<std::string>& site) {
    size_t flows = 0;
    for (const std::string& member : inside ? std::vector<std::string>{end} : site) {
      for (auto it = worked.lower_bound({member, ""});
           it != worked.end() && it->first.first == member; ++it) {
        const bool leaves = std::find(site.begin(), site.end(), it->first.second) == site.end();
        if (leaves != inside && now_ms - it->second <= kWorkingMs) ++flows;
      }
    }
    return flows;
  };
  return std::max(
      {count(worked_ms_, way.first, from), count(worked_back_ms_, way.second, to), size_t{1}});
}

// What two flows at once have shown of a line is over. It carries what its ways do all the same
// (structure.h): where another one is the bottleneck nothing changes.
void LinkBook::line_carries(const LineKey& line, double most_bytes_s) {
  const auto found = lines_.find(line);
  if (found == lines_.end() || !found->second.shared()) return;
  found->second.together_bytes_s = std::min(found->second.together_bytes_s, most_bytes_s);
}

bool LinkBook::awaited(const std::vector<LinkPeer>& peers) const {
  std::set<std::string> ids;
  bool dialable = false;
  for (const LinkPeer& peer : peers) {
    if (!peer.idle) continue;
    ids.insert(peer.id);
    dialable = dialable || peer.dialable;
  }
  if (ids.size() < 2 || !dialable || options_.max_running == 0) return false;
  const auto between = [&](const LinkKey& way) {
    return ids.contains(way.first) && ids.contains(way.second);
  };
  for (const auto& [way, entry] : records_) {
    if (between(way)) return false;
  }
  for (const auto& [id, run] : running_) {
    if (between({run.task.prober, run.task.targets.front()})) return true;
  }
  for (const auto& [way, trouble] : trouble_) {
    if (between(way)) return false;  // tried in vain: the next may take long
  }
  return true;
}

LinkView LinkBook::view(const std::vector<std::string>& ids) const {
  return infer_links(structure(), ids, landmarks_, options_);
}

LinkView LinkBook::measured(const std::vector<std::string>& ids) const {
  return measured_links(structure(), ids, landmarks_, options_);
}

std::optional<LineView> LinkBook::line(const std::string& peer) const {
  const auto found = structure().find(peer);
  return found ? line_of(structure(), *found) : std::nullopt;
}

const LinkEntry* LinkBook::find(const LinkKey& way) const {
  const auto found = records_.find(way);
  return found == records_.end() ? nullptr : &found->second;
}

nlohmann::json LinkBook::row(const LinkKey& way) const {
  const LinkEntry* entry = find(way);
  return entry == nullptr ? nlohmann::json() : entry->record.to_json();
}

void LinkBook::restore(const LinkKey& way, const nlohmann::json& row) {
  auto record = LinkRecord::from_json(row);
  if (!record.ok() || record->empty()) return;  // it is measured again
  LinkEntry& entry = records_[way];
  entry.record = std::move(*record);
  entry.fit = entry.record.fit();
  structure_.reset();
}

}  // namespace weft::broker
