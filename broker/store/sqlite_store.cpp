#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>

#include <map>
#include <memory>

#include "broker/store/schema.h"
#include "broker/store/store.h"

namespace weft::broker {
namespace {

using Json = nlohmann::json;

Error broken(const char* what, const std::exception& error) {
  return make_error(Code::kIo,
                    fmt::format("the broker's store failed to {}: {}", what, error.what()),
                    "check the disk that holds the state folder");
}

void bind_all(SQLite::Statement&, int) {}
template <typename First, typename... Rest>
void bind_all(SQLite::Statement& statement, int index, const First& first, const Rest&... rest) {
  statement.bind(index, first);
  bind_all(statement, index + 1, rest...);
}

class SqliteStore final : public Store {
 public:
  explicit SqliteStore(const std::string& path)
      : db_(path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE, /*busy timeout ms*/ 5000) {}

  Status prepare() {
    return guarded("open its tables", [&]() -> Status {
      db_.exec("PRAGMA journal_mode=WAL");
      db_.exec("PRAGMA synchronous=NORMAL");
      const int version = db_.execAndGet("PRAGMA user_version").getInt();
      const int newest = static_cast<int>(kMigrations.size());
      if (version > newest) {
        return make_error(Code::kRefused,
                          fmt::format("the store has schema version {}, this program knows up to "
                                      "{}",
                                      version, newest),
                          "use the newer weft-broker that wrote it");
      }
      for (int step = version; step < newest; ++step) {
        SQLite::Transaction transaction(db_);
        db_.exec(kMigrations[static_cast<size_t>(step)]);
        db_.exec(fmt::format("PRAGMA user_version={}", step + 1));
        transaction.commit();
      }
      return {};
    });
  }

  Status batch(const std::function<Status()>& body) override {
    if (in_batch_) return part_of_batch(body);
    return guarded("write a batch", [&]() -> Status {
      SQLite::Transaction transaction(db_);
      in_batch_ = true;
      Status status = undoing_sequences(body);
      in_batch_ = false;
      if (status.ok()) transaction.commit();
      return status;
    });
  }

  Status put_peer(const std::string& id, const Json& record) override {
    return run("write a peer", "INSERT OR REPLACE INTO peers VALUES(?,?)", id, text(record));
  }
  Status remove_peer(const std::string& id) override {
    WEFT_TRY_STATUS(
        run("remove links", "DELETE FROM links WHERE from_peer=? OR to_peer=?", id, id));
    return run("remove a peer", "DELETE FROM peers WHERE id=?", id);
  }
  Result<std::vector<Json>> peers() override {
    return documents("read peers", "SELECT record FROM peers ORDER BY id");
  }

  Status put_link(const LinkRow& link) override {
    return run("write a link", "INSERT OR REPLACE INTO links VALUES(?,?,?,?)", link.from, link.to,
               link.time_ms, text(link.record));
  }
  Status remove_links_before(int64_t time_ms) override {
    return run("remove links", "DELETE FROM links WHERE time_ms<?", time_ms);
  }
  Result<std::vector<LinkRow>> links() override {
    std::vector<LinkRow> rows;
    WEFT_TRY_STATUS(each(
        "read links",
        "SELECT from_peer,to_peer,time_ms,record FROM links ORDER BY from_peer,to_peer",
        [&](SQLite::Statement& row) {
          rows.push_back({row.getColumn(0).getString(), row.getColumn(1).getString(),
                          row.getColumn(2).getInt64(), Json::parse(row.getColumn(3).getString())});
        }));
    return rows;
  }

  Status put_job(const std::string& id, const Json& record) override {
    return run("write a job", "INSERT OR REPLACE INTO jobs VALUES(?,?)", id, text(record));
  }
  Status put_submission(const std::string& job, const Json& body) override {
    return run("write a submission", "INSERT OR REPLACE INTO submissions VALUES(?,?)", job,
               text(body));
  }
  Result<Json> submission(const std::string& job) override {
    WEFT_TRY(std::vector<Json> rows,
             documents("read a submission", "SELECT body FROM submissions WHERE job=?", job));
    if (rows.empty()) {
      return make_error(Code::kNotFound, fmt::format("job {} has no stored submission", job));
    }
    return std::move(rows[0]);
  }
  Result<std::vector<Json>> jobs() override {
    return documents("read jobs", "SELECT record FROM jobs ORDER BY id");
  }
  Status remove_job(const std::string& id) override {
    for (const char* table :
         {"submissions", "events", "decisions", "steps", "evals", "logs", "checkpoints"}) {
      WEFT_TRY_STATUS(run("remove a job", fmt::format("DELETE FROM {} WHERE job=?", table), id));
    }
    sequences_.erase("events/" + id);
    sequences_.erase("logs/" + id);
    return run("remove a job", "DELETE FROM jobs WHERE id=?", id);
  }

  Result<int64_t> add_event(const std::string& job, const EventRow& event) override {
    WEFT_TRY(const int64_t seq, next_sequence("events", job));
    WEFT_TRY_STATUS(run("write an event", "INSERT INTO events VALUES(?,?,?,?,?,?)", job, seq,
                        event.time_ms, event.kind, event.message, text(event.data)));
    WEFT_TRY_STATUS(trim("events", job, seq, kMaxEventRows));
    return seq;
  }
  Result<std::vector<EventRow>> events(const std::string& job, int64_t after,
                                       int64_t limit) override {
    std::vector<EventRow> rows;
    WEFT_TRY_STATUS(each(
        "read events",
        "SELECT seq,time_ms,kind,message,data FROM events WHERE job=? AND seq>? "
        "ORDER BY seq LIMIT ?",
        [&](SQLite::Statement& row) {
          rows.push_back({row.getColumn(0).getInt64(), row.getColumn(1).getInt64(),
                          row.getColumn(2).getString(), row.getColumn(3).getString(),
                          Json::parse(row.getColumn(4).getString())});
        },
        job, after, limit));
    return rows;
  }

  Status add_decision(const std::string& job, const DecisionRow& decision) override {
    return run("write a decision", "INSERT INTO decisions VALUES(?,?,?,?)", job, decision.time_ms,
               decision.decision, decision.reason);
  }
  Result<std::vector<DecisionRow>> decisions(const std::string& job) override {
    std::vector<DecisionRow> rows;
    WEFT_TRY_STATUS(each(
        "read decisions",
        "SELECT time_ms,decision,reason FROM decisions WHERE job=? ORDER BY rowid",
        [&](SQLite::Statement& row) {
          rows.push_back({row.getColumn(0).getInt64(), row.getColumn(1).getString(),
                          row.getColumn(2).getString()});
        },
        job));
    return rows;
  }

  Status put_step(const std::string& job, int64_t step, const Json& row) override {
    return run("write a step", "INSERT OR REPLACE INTO steps VALUES(?,?,?)", job, step, text(row));
  }
  Status put_eval(const std::string& job, int64_t step, const Json& row) override {
    return run("write an evaluation", "INSERT OR REPLACE INTO evals VALUES(?,?,?)", job, step,
               text(row));
  }
  Result<std::vector<Json>> steps(const std::string& job, int64_t after, int64_t limit) override {
    return documents("read steps",
                     "SELECT row FROM steps WHERE job=? AND step>? ORDER BY step LIMIT ?", job,
                     after, limit);
  }
  Result<std::vector<Json>> evals(const std::string& job, int64_t after, int64_t upto) override {
    return documents("read evaluations",
                     "SELECT row FROM evals WHERE job=? AND step>? AND step<=? ORDER BY step", job,
                     after, upto);
  }
  Result<int64_t> last_step(const std::string& job) override {
    int64_t last = 0;
    WEFT_TRY_STATUS(each(
        "read steps", "SELECT MAX(step) FROM steps WHERE job=?",
        [&](SQLite::Statement& row) {
          if (!row.isColumnNull(0)) last = row.getColumn(0).getInt64();
        },
        job));
    return last;
  }
  Status truncate_metrics(const std::string& job, int64_t after) override {
    WEFT_TRY_STATUS(run("cut metrics", "DELETE FROM steps WHERE job=? AND step>?", job, after));
    return run("cut metrics", "DELETE FROM evals WHERE job=? AND step>?", job, after);
  }

  Status add_log(const std::string& job, int32_t stage, const std::string& line) override {
    WEFT_TRY(const int64_t seq, next_sequence("logs", job));
    WEFT_TRY_STATUS(
        run("write a log line", "INSERT INTO logs VALUES(?,?,?,?)", job, seq, stage, line));
    return trim("logs", job, seq, kMaxLogRows);
  }
  Result<std::vector<LogRow>> logs(const std::string& job, int64_t after, int64_t limit) override {
    std::vector<LogRow> rows;
    WEFT_TRY_STATUS(each(
        "read logs",
        "SELECT seq,stage,text FROM logs WHERE job=? AND seq>? ORDER BY seq "
        "LIMIT ?",
        [&](SQLite::Statement& row) {
          rows.push_back({row.getColumn(0).getInt64(), row.getColumn(1).getInt(),
                          row.getColumn(2).getString()});
        },
        job, after, limit));
    return rows;
  }

  Status put_checkpoint(const std::string& job, int64_t step, const Json& record) override {
    return run("write a checkpoint", "INSERT OR REPLACE INTO checkpoints VALUES(?,?,?)", job, step,
               text(record));
  }
  Status remove_checkpoint(const std::string& job, int64_t step) override {
    return run("remove a checkpoint", "DELETE FROM checkpoints WHERE job=? AND step=?", job, step);
  }
  Result<std::vector<Json>> checkpoints(const std::string& job) override {
    return documents("read checkpoints", "SELECT record FROM checkpoints WHERE job=? ORDER BY step",
                     job);
  }

  Status put_invite(const Invite& invite) override {
    return run("write an invitation", "INSERT INTO invites VALUES(?,?,?,?,?)", invite.token_id,
               invite.token_sha256, invite.expires_ms, invite.uses, invite.used);
  }
  Result<std::optional<Invite>> invite_by_hash(const std::string& token_sha256) override {
    std::optional<Invite> found;
    WEFT_TRY_STATUS(each(
        "read an invitation",
        "SELECT token_id,token_sha256,expires_ms,uses,used FROM invites "
        "WHERE token_sha256=?",
        [&](SQLite::Statement& row) {
          found = Invite{row.getColumn(0).getString(), row.getColumn(1).getString(),
                         row.getColumn(2).getInt64(), row.getColumn(3).getInt64(),
                         row.getColumn(4).getInt64()};
        },
        token_sha256));
    return found;
  }
  Result<std::string> invited_peer(const std::string& token_id,
                                   const std::string& key_fingerprint) override {
    return one_text("read an invitation",
                    "SELECT peer FROM invite_uses WHERE token_id=? AND key_fingerprint=?", token_id,
                    key_fingerprint);
  }
  Status use_invite(const std::string& token_id, const std::string& key_fingerprint,
                    const std::string& peer) override {
    WEFT_TRY_STATUS(run("use an invitation", "INSERT INTO invite_uses VALUES(?,?,?)", token_id,
                        key_fingerprint, peer));
    return run("use an invitation", "UPDATE invites SET used=used+1 WHERE token_id=?", token_id);
  }

  Result<std::string> meta(const std::string& name) override {
    return one_text("read its facts", "SELECT value FROM meta WHERE name=?", name);
  }
  Status set_meta(const std::string& name, const std::string& value) override {
    return run("write its facts", "INSERT OR REPLACE INTO meta VALUES(?,?)", name, value);
  }

 private:
  // Strings from peers may be no UTF-8; a replacement character is better than a lost row.
  static std::string text(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  Status undoing_sequences(const std::function<Status()>& body) {
    const auto sequences = sequences_;
    Status status = guarded("write a batch", body);
    if (!status.ok()) sequences_ = sequences;
    return status;
  }

  // Undone alone if it fails, with the whole if that does.
  Status part_of_batch(const std::function<Status()>& body) {
    return guarded("write a part of a batch", [&]() -> Status {
      db_.exec("SAVEPOINT part");
      Status status = undoing_sequences(body);
      if (!status.ok()) db_.exec("ROLLBACK TO part");
      db_.exec("RELEASE part");
      return status;
    });
  }

  template <typename Body>
  Status guarded(const char* what, Body body) {
    try {
      return body();
    } catch (const std::exception& error) {
      return broken(what, error);
    }
  }

  SQLite::Statement& statement(const std::string& sql) {
    auto& entry = statements_[sql];
    if (!entry) entry = std::make_unique<SQLite::Statement>(db_, sql);
    entry->tryReset();
    return *entry;
  }

  template <typename... Values>
  Status run(const char* what, const std::string& sql, const Values&... values) {
    return guarded(what, [&]() -> Status {
      SQLite::Statement& prepared = statement(sql);
      bind_all(prepared, 1, values...);
      prepared.exec();
      return {};
    });
  }

  template <typename Row, typename... Values>
  Status each(const char* what, const std::string& sql, Row row, const Values&... values) {
    return guarded(what, [&]() -> Status {
      SQLite::Statement& prepared = statement(sql);
      bind_all(prepared, 1, values...);
      while (prepared.executeStep()) row(prepared);
      prepared.reset();
      return {};
    });
  }

  template <typename... Values>
  Result<std::vector<Json>> documents(const char* what, const std::string& sql,
                                      const Values&... values) {
    std::vector<Json> rows;
    WEFT_TRY_STATUS(each(
        what, sql,
        [&](SQLite::Statement& row) { rows.push_back(Json::parse(row.getColumn(0).getString())); },
        values...));
    return rows;
  }

  template <typename... Values>
  Result<std::string> one_text(const char* what, const std::string& sql, const Values&... values) {
    std::string found;
    WEFT_TRY_STATUS(each(
        what, sql, [&](SQLite::Statement& row) { found = row.getColumn(0).getString(); },
        values...));
    return found;
  }

  Result<int64_t> next_sequence(const std::string& table, const std::string& job) {
    const std::string key = table + "/" + job;
    if (!sequences_.contains(key)) {
      int64_t last = 0;
      WEFT_TRY_STATUS(each(
          "count rows", fmt::format("SELECT MAX(seq) FROM {} WHERE job=?", table),
          [&](SQLite::Statement& row) {
            if (!row.isColumnNull(0)) last = row.getColumn(0).getInt64();
          },
          job));
      sequences_[key] = last;
    }
    return ++sequences_[key];
  }

  Status trim(const char* table, const std::string& job, int64_t seq, int64_t keep) {
    if (seq <= keep || seq % 256 != 0) return {};
    return run("trim rows", fmt::format("DELETE FROM {} WHERE job=? AND seq<=?", table), job,
               seq - keep);
  }

  SQLite::Database db_;
  std::map<std::string, std::unique_ptr<SQLite::Statement>> statements_;
  std::map<std::string, int64_t> sequences_;
  bool in_batch_ = false;
};

}  // namespace

Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path) {
  try {
    auto store = std::make_unique<SqliteStore>(path);
    WEFT_TRY_STATUS(store->prepare());
    return std::unique_ptr<Store>(std::move(store));
  } catch (const std::exception& error) {
    return make_error(Code::kIo, fmt::format("cannot open the store {}: {}", path, error.what()),
                      "check the state folder");
  }
}

}  // namespace weft::broker
