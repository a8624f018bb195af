#include "broker/core.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/log.h"
#include "broker/coordinator/record.h"
#include "broker/effects.h"
#include "broker/messages.h"
#include "broker/sweep.h"
#include "job/json_read.h"

namespace weft::broker {
namespace {

constexpr size_t kMaxBlobsPerPeer = 100000;
constexpr size_t kMaxLogLine = 4096;
constexpr int kMaxLogLines = 1000;  // of a message
constexpr const char* kRevokedMeta = "revoked_peers";
constexpr size_t kMaxReportBytes = size_t{1} << 20;

std::string utc_text(int64_t unix_ms) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC",
                     fmt::gmtime(static_cast<std::time_t>(unix_ms / 1000)));
}

}  // namespace

Core::Core(Store& store, net::BlobStore& blobs, const Clock& clock, CoreOptions options)
    : store_(store),
      blobs_(blobs),
      clock_(clock),
      options_(std::move(options)),
      wall_origin_ms_(clock.wall_ms() - clock.monotonic_ms()),
      links_(store, probe_, options_.probe_links) {
  options_.coordinator.plan = [this](const Job& job, const std::vector<const Peer*>& idle) {
    return plan(job, idle);
  };
  options_.coordinator.replan = [this](const Job& job, const std::vector<const Peer*>& peers,
                                       double unproven) { return replan(job, peers, unproven); };
  // What the operator wrote of the network is something, too.
  options_.coordinator.links_awaited = [this](const std::vector<const Peer*>& idle) {
    return options_.known.links.empty() && links_.awaited(idle);
  };
  options_.coordinator.speed_written = [this](const Peer& peer) {
    return speed_written(peer, options_.known);
  };
  options_.coordinator.speeds = [this](const std::vector<const Peer*>& peers) {
    return promised_speeds(peers, options_.known, lessons_for(peers));
  };
}

Status Core::load() {
  WEFT_TRY(const auto peers, store_.peers());
  for (const auto& record : peers) {
    WEFT_TRY(Peer peer, peer_from_record(record));
    if (link_ != nullptr) link_->allow(peer.curve_public, peer.id);
    state_.peers.emplace(peer.id, std::move(peer));
  }
  WEFT_TRY(const auto jobs, store_.jobs());
  for (const auto& record : jobs) {
    WEFT_TRY(Job job, job_from_record(record));
    WEFT_TRY(const auto checkpoints, store_.checkpoints(job.id));
    for (const auto& row : checkpoints) {
      WEFT_TRY(Checkpoint checkpoint, checkpoint_from_record(row));
      job.checkpoints.emplace(checkpoint.step, std::move(checkpoint));
    }
    if (const auto body = store_.submission(job.id); body.ok()) {
      know(job.id, body.value());
    } else {
      log_error("job {}: {}; no blob will be removed", job.id, body.error().text());
      every_job_known_ = false;
    }
    WEFT_TRY(const int64_t logged, store_.last_step(job.id));
    job.step = std::max(job.step, logged);
    state_.jobs.emplace(job.id, std::move(job));
  }
  WEFT_TRY_STATUS(load_revoked());
  WEFT_TRY_STATUS(links_.load(state_, now_ms()));
  apply(Restarted{utc_text(now_ms())});
  return {};
}

Status Core::load_revoked() {
  WEFT_TRY(const std::string text, store_.meta(kRevokedMeta));
  if (text.empty()) return {};
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return make_error(Code::kCorrupt, "the store's list of removed peers is broken",
                      "restore broker.db from a backup");
  }
  for (const auto& [peer, removed_ms] : json.items()) {
    if (removed_ms.is_number_integer()) state_.revoked[peer] = removed_ms.get<int64_t>();
  }
  return {};
}

Status Core::command(const Event& event) {
  WEFT_TRY_STATUS(check_command(state_, event));
  apply(event);
  return {};
}

Status Core::admit(const PeerJoined& joined, const std::function<Status()>& also) {
  WEFT_CHECK(!applying_);  // a request of its own, never an effect
  std::optional<Peer> before;
  if (const auto found = state_.peers.find(joined.peer); found != state_.peers.end()) {
    before = found->second;
  }
  applying_ = true;
  const Status stored = apply_one(joined, also);
  applying_ = false;
  if (!stored.ok()) {
    if (before) {
      state_.peers[joined.peer] = std::move(*before);
    } else {
      state_.peers.erase(joined.peer);
    }
  } else if (link_ != nullptr) {
    if (before && before->curve_public != joined.curve_public) link_->revoke(before->curve_public);
    std::erase_if(revocations_, [&](const auto& e) { return e.second == joined.curve_public; });
    link_->allow(joined.curve_public, joined.peer);
  }
  drain_pending();
  return stored;
}

void Core::apply(const Event& event) {
  pending_.push_back(event);
  drain_pending();
}

void Core::drain_pending() {
  if (applying_) return;  // an effect brought an event; the loop below takes it
  applying_ = true;
  while (!pending_.empty()) {
    const Event next = std::move(pending_.front());
    pending_.pop_front();
    (void)apply_one(next).ok();  // noted; the state goes on, the next write may succeed
  }
  applying_ = false;
}

Status Core::apply_one(const Event& event, const std::function<Status()>& also) {
  const int64_t began_ms = clock_.monotonic_ms();
  const std::vector<Effect> effects = broker::apply(state_, event, now_ms(), options_.coordinator);
  Status stored;
  if (!effects.empty() || also) stored = EffectRunner(*this).run(effects, also);
  probe_.loop_took(static_cast<double>(clock_.monotonic_ms() - began_ms) / 1000.0);
  return stored;
}

void Core::tick() {
  apply(Tick{});
  const auto send_probe = [this](const std::string& peer, proto::BrokerMessage message,
                                 int32_t ttl_ms) {
    probe_.message_sent("probe");
    send(peer, std::move(message), ttl_ms);
  };
  if (const Status kept = links_.tick(state_, now_ms(), send_probe); !kept.ok()) note(kept);
  std::erase_if(revocations_, [&](const auto& entry) {
    if (now_ms() < entry.first) return false;
    if (link_ != nullptr) link_->revoke(entry.second);
    return true;
  });
}

void Core::note(Status status) {
  if (status.ok()) {
    store_healthy_ = true;
    return;
  }
  store_healthy_ = false;
  probe_.store_failed();
  log_error("{}", status.error().text());
}

void Core::send(const std::string& peer, proto::BrokerMessage message, int32_t ttl_ms) {
  if (link_ != nullptr) link_->send(peer, std::move(message), ttl_ms);
}

// ---- messages ----------------------------------------------------------------------------------

void Core::on_message(const std::string& peer, const proto::PeerMessage& message) {
  if (!state_.peers.contains(peer)) return;  // removed a moment ago
  switch (message.body_case()) {
    case proto::PeerMessage::kReport:
      probe_.message_received("report");
      on_report(peer, message.report());
      return;
    case proto::PeerMessage::kProfile:
      probe_.message_received("profile");
      on_profile(peer, message.profile());
      return;
    case proto::PeerMessage::kProbe:
      probe_.message_received("probe");
      on_probe(peer, message.probe());
      return;
    case proto::PeerMessage::kLogs:
      probe_.message_received("logs");
      on_logs(peer, message.logs());
      return;
    case proto::PeerMessage::kBlobs:
      probe_.message_received("blobs");
      on_blobs(peer, message.blobs());
      return;
    case proto::PeerMessage::kCheckpoint:
      probe_.message_received("checkpoint");
      if (!blobs_.has(message.checkpoint().sha256())) {
        if (const auto note = wrong_messages_.admit(clock_.monotonic_ms())) {
          log_warning("peer {} reports a checkpoint shard {} that is not stored{}", peer,
                      message.checkpoint().sha256().substr(0, 64), *note);
        }
        return;
      }
      break;
    default:
      probe_.message_received("control");
  }
  if (const auto event = event_of(peer, message)) apply(*event);
}

void Core::on_profile(const std::string& peer, const proto::MeasuredProfile& measured) {
  const auto event = event_of(peer, measured);
  if (event.ok()) return apply(*event);
  if (const auto note = wrong_messages_.admit(clock_.monotonic_ms())) {
    log_warning("peer {} sent a profile that is not taken: {}{}", peer, event.error().message,
                *note);
  }
}

void Core::on_probe(const std::string& peer, const proto::ProbeReport& report) {
  const auto result = probe_result(report);
  if (result.ok()) {
    if (const Status kept = links_.add(peer, result.value(), now_ms()); !kept.ok()) note(kept);
    return;
  }
  if (const auto note = wrong_messages_.admit(clock_.monotonic_ms())) {
    log_warning("peer {} sent a measurement of links that is not taken: {}{}", peer,
                result.error().message, *note);
  }
}

void Core::on_report(const std::string& peer, const proto::WorkerReport& report) {
  if (report.event_json().size() > kMaxReportBytes) return;
  const auto json = job::parse_json(report.event_json(), "the report");
  if (!json.ok()) return;
  const auto event = job::event_from_json(json.value());
  if (!event.ok()) {
    if (const auto note = wrong_messages_.admit(clock_.monotonic_ms())) {
      log_warning("peer {} sent a report that is not understood: {}{}", peer, event.error().message,
                  *note);
    }
    return;
  }
  const auto translated = event_of(peer, report, event.value());
  if (!translated) return;
  apply(*translated);
  const Job* job = reporting(peer, report);
  if (job == nullptr) return;
  log_steps(*job, report, event.value());
  learn_links(*job, report, event.value());
}

StepLog* Core::step_log(const std::string& id) {
  const auto job = state_.jobs.find(id);
  if (job == state_.jobs.end()) return nullptr;
  auto found = step_logs_.find(id);
  if (found == step_logs_.end() || found->second.epoch != job->second.epoch) {
    const auto known = loaded(id);
    if (!known.ok()) return nullptr;
    const Submission& submission = known.value()->submission;
    job::TrainSpec train = submission.spec.train;
    train.steps = job->second.steps;
    const bool evaluates =
        std::any_of(submission.data.begin(), submission.data.end(),
                    [](const auto& entry) { return entry.first.starts_with("eval"); });
    step_logs_.erase(id);
    found = step_logs_
                .emplace(id, RunLog{job->second.epoch,
                                    StepLog(train, static_cast<int32_t>(job->second.stages.size()),
                                            evaluates)})
                .first;
  }
  return &found->second.log;
}

// Only what the coordinator would believe: the stage's holder, this epoch, a running job.
const Job* Core::reporting(const std::string& peer, const proto::WorkerReport& report) const {
  const auto found = state_.jobs.find(report.job());
  if (found == state_.jobs.end()) return nullptr;
  const Job& job = found->second;
  const size_t stage = static_cast<size_t>(report.stage());
  const bool holds = job.epoch == report.epoch() && job.phase == JobPhase::kRunning &&
                     report.stage() >= 0 && stage < job.stages.size() &&
                     job.stages[stage].peer == peer;
  return holds ? &job : nullptr;
}

void Core::log_steps(const Job& job, const proto::WorkerReport& report,
                     const job::WorkerEvent& event) {
  if (event.step < 0 || event.step > job.steps) return;
  StepLog* log = step_log(job.id);
  if (log == nullptr) return;
  if (event.kind == job::WorkerEventKind::kStep) {
    log->add_step(report.stage(), event);
  } else if (event.kind == job::WorkerEventKind::kEval) {
    note(store_.put_eval(job.id, event.step, log->add_eval(event)));
  } else {
    return;
  }
  flush_steps(job.id, *log, false);
}

void Core::flush_steps(const std::string& job, StepLog& log, bool all) {
  const auto rows = log.take(all);
  if (rows.empty()) return;
  note(store_.batch([&]() -> Status {
    for (const auto& [step, row] : rows) WEFT_TRY_STATUS(store_.put_step(job, step, row));
    return {};
  }));
  for (const auto& [step, row] : rows) {
    const double seconds = row["seconds"].is_number() ? row["seconds"].get<double>() : 0;
    probe_.step_done(seconds, row["tokens"].get<int64_t>());
  }
  if (news_) news_(job);
}

void Core::on_logs(const std::string& peer, const proto::LogLines& logs) {
  const auto found = state_.jobs.find(logs.job());
  const size_t stage = static_cast<size_t>(logs.stage());
  if (found == state_.jobs.end() || logs.stage() < 0 || stage >= found->second.stages.size() ||
      found->second.stages[stage].peer != peer) {
    return;
  }
  note(store_.batch([&]() -> Status {
    const int count = std::min(logs.lines_size(), kMaxLogLines);
    for (int i = 0; i < count; ++i) {
      WEFT_TRY_STATUS(
          store_.add_log(logs.job(), logs.stage(), logs.lines(i).substr(0, kMaxLogLine)));
    }
    if (count == logs.lines_size()) return {};
    return store_.add_log(
        logs.job(), logs.stage(),
        fmt::format("({} lines too many at once were dropped)", logs.lines_size() - count));
  }));
  if (news_) news_(logs.job());
}

void Core::on_blobs(const std::string& peer, const proto::HaveBlobs& have) {
  std::set<std::string>& known = peer_blobs_[peer];
  known.clear();
  for (const std::string& name : have.sha256()) {
    if (known.size() == kMaxBlobsPerPeer) break;
    if (is_sha256_hex(name)) known.insert(name);
  }
}

size_t Core::blobs_at(const std::string& peer) const {
  const auto found = peer_blobs_.find(peer);
  return found == peer_blobs_.end() ? 0 : found->second.size();
}

// ---- jobs --------------------------------------------------------------------------------------

namespace {

// Every blob a submission names. Not by its parser: what an older or newer program wrote must keep
// its blobs, too.
void collect_blobs(const nlohmann::json& node, std::set<std::string>& names) {
  if (!node.is_structured()) return;
  if (node.is_object()) {
    const auto found = node.find("sha256");
    if (found != node.end() && found->is_string()) names.insert(found->get<std::string>());
  }
  for (const auto& child : node) collect_blobs(child, names);
}

}  // namespace

void Core::know(const std::string& job, const nlohmann::json& submission) {
  KnownJob& entry = known_jobs_[job];
  entry.spec = submission.is_object() ? submission.value("spec", nlohmann::json()) : nullptr;
  entry.blobs.clear();
  collect_blobs(submission, entry.blobs);
}

nlohmann::json Core::spec_of(const std::string& job) const {
  const auto found = known_jobs_.find(job);
  return found == known_jobs_.end() ? nlohmann::json() : found->second.spec;
}

bool Core::referenced(const std::string& blob) const {
  for (const auto& [id, job] : known_jobs_) {
    if (job.blobs.contains(blob)) return true;
  }
  for (const auto& [id, job] : state_.jobs) {
    for (const auto& [step, checkpoint] : job.checkpoints) {
      for (const auto& [stage, shard] : checkpoint.shards) {
        if (shard.sha256 == blob) return true;
      }
    }
  }
  return false;
}

void Core::remove_blob(const std::string& name) {
  if (!every_job_known_ || referenced(name)) return;
  if (const Status removed = blobs_.remove(name); !removed.ok()) {
    log_warning("cannot remove blob {}: {}", name, removed.error().text());
  }
}

void Core::sweep(const std::vector<net::BlobFile>& files) {
  if (!every_job_known_) return;
  std::set<std::string> needed;
  for (const auto& [id, job] : known_jobs_) needed.insert(job.blobs.begin(), job.blobs.end());
  for (const auto& [id, job] : state_.jobs) {
    for (const auto& [step, checkpoint] : job.checkpoints) {
      for (const auto& [stage, shard] : checkpoint.shards) needed.insert(shard.sha256);
    }
  }
  const auto stale = files_to_sweep(files, needed, kLeastSweepAgeMs);
  uint64_t bytes = 0;
  for (const net::BlobFile& file : stale) {
    const auto removed = blobs_.remove_if_older(file, kLeastSweepAgeMs);
    if (!removed.ok()) {
      log_warning("cannot remove blob file {}: {}", file.name, removed.error().text());
    } else if (*removed) {
      bytes += file.bytes;
    }
  }
  if (!stale.empty()) {
    log_info("swept {} blob files nobody names, {} bytes", stale.size(), bytes);
  }
}

}  // namespace weft::broker
