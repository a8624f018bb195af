// Store: what the broker must not forget. A narrow interface, so that SQLite can give way to a
// server where the broker must outlive its host. One thread, the broker's loop. A failed call
// changes nothing; inside batch() a failure rolls the whole batch back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/os/file.h"
#include "base/result.h"

namespace weft::broker {

struct EventRow {
  int64_t seq = 0, time_ms = 0;
  std::string kind, message;
  nlohmann::json data;
};
struct DecisionRow {
  int64_t time_ms = 0;
  std::string decision, reason;
};
struct LogRow {
  int64_t seq = 0;
  int32_t stage = 0;
  std::string text;
};
struct Invite {
  std::string token_id;
  std::string token_sha256;  // the token itself is not kept
  int64_t expires_ms = 0;
  int64_t uses = 1, used = 0;
};

// What was measured of one direction between two peers (links/link_book.h).
struct LinkRow {
  std::string from, to;
  int64_t time_ms = 0;
  nlohmann::json record;
};

// Rows kept per job; the oldest go.
inline constexpr int64_t kMaxEventRows = 20000;
inline constexpr int64_t kMaxLogRows = 20000;

class Store {
 public:
  virtual ~Store() = default;

  // Runs body in one transaction; within another batch as a part of it.
  virtual Status batch(const std::function<Status()>& body) = 0;

  virtual Status put_peer(const std::string& id, const nlohmann::json& record) = 0;
  virtual Status remove_peer(const std::string& id) = 0;  // and its links
  virtual Result<std::vector<nlohmann::json>> peers() = 0;

  virtual Status put_link(const LinkRow& link) = 0;
  virtual Status remove_links_before(int64_t time_ms) = 0;
  virtual Result<std::vector<LinkRow>> links() = 0;

  virtual Status put_job(const std::string& id, const nlohmann::json& record) = 0;
  virtual Status put_submission(const std::string& job, const nlohmann::json& submission) = 0;
  virtual Result<nlohmann::json> submission(const std::string& job) = 0;
  virtual Result<std::vector<nlohmann::json>> jobs() = 0;
  // The job and every row of it.
  virtual Status remove_job(const std::string& id) = 0;

  // job "" holds the events of the cluster. seq counts from 1 per job.
  virtual Result<int64_t> add_event(const std::string& job, const EventRow& event) = 0;
  virtual Result<std::vector<EventRow>> events(const std::string& job, int64_t after,
                                               int64_t limit) = 0;
  virtual Status add_decision(const std::string& job, const DecisionRow& decision) = 0;
  virtual Result<std::vector<DecisionRow>> decisions(const std::string& job) = 0;

  virtual Status put_step(const std::string& job, int64_t step, const nlohmann::json& row) = 0;
  virtual Status put_eval(const std::string& job, int64_t step, const nlohmann::json& row) = 0;
  virtual Result<std::vector<nlohmann::json>> steps(const std::string& job, int64_t after,
                                                    int64_t limit) = 0;
  // Evaluations of steps in (after, upto].
  virtual Result<std::vector<nlohmann::json>> evals(const std::string& job, int64_t after,
                                                    int64_t upto) = 0;
  virtual Result<int64_t> last_step(const std::string& job) = 0;  // 0: none
  virtual Status truncate_metrics(const std::string& job, int64_t after) = 0;

  virtual Status add_log(const std::string& job, int32_t stage, const std::string& text) = 0;
  virtual Result<std::vector<LogRow>> logs(const std::string& job, int64_t after,
                                           int64_t limit) = 0;

  virtual Status put_checkpoint(const std::string& job, int64_t step,
                                const nlohmann::json& record) = 0;
  virtual Status remove_checkpoint(const std::string& job, int64_t step) = 0;
  virtual Result<std::vector<nlohmann::json>> checkpoints(const std::string& job) = 0;

  virtual Status put_invite(const Invite& invite) = 0;
  virtual Result<std::optional<Invite>> invite_by_hash(const std::string& token_sha256) = 0;
  // The peer that used this token with this key before, or "".
  virtual Result<std::string> invited_peer(const std::string& token_id,
                                           const std::string& key_fingerprint) = 0;
  // In a batch with the peer it is used for.
  virtual Status use_invite(const std::string& token_id, const std::string& key_fingerprint,
                            const std::string& peer) = 0;

  virtual Result<std::string> meta(const std::string& name) = 0;  // "": absent
  virtual Status set_meta(const std::string& name, const std::string& value) = 0;
};

// SQLite: WAL, synchronous NORMAL; migrates older schemas, refuses newer ones. ":memory:" for
// tests.
Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path);

}  // namespace weft::broker
