#include "broker/store/store.h"

#include <gtest/gtest.h>

#include "broker/step_log.h"

namespace weft::broker {
namespace {

using Json = nlohmann::json;

std::string fresh_path(const char* name) {
  const std::string path = ::testing::TempDir() + name;
  for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path + suffix);
  return path;
}

TEST(Store, RoundTripsAndSurvivesReopening) {
  const std::string path = fresh_path("weft_store_test.db");
  {
    auto store = open_sqlite_store(path);
    ASSERT_TRUE(store.ok()) << store.error().text();
    Store& s = **store;
    ASSERT_TRUE(s.put_peer("p-1", {{"id", "p-1"}}).ok());
    ASSERT_TRUE(s.put_job("j", {{"id", "j"}, {"v", 1}}).ok());
    ASSERT_TRUE(s.put_job("j", {{"id", "j"}, {"v", 2}}).ok());
    ASSERT_TRUE(s.put_submission("j", {{"spec", 1}}).ok());
    EXPECT_EQ(*s.add_event("j", {0, 5, "state", "m\xff", {{"a", 1}}}), 1);
    EXPECT_EQ(*s.add_event("j", {0, 6, "state", "n", {}}), 2);
    EXPECT_EQ(*s.add_event("", {0, 6, "peer", "n", {}}), 1);
    ASSERT_TRUE(s.add_decision("j", {7, "plan", "why"}).ok());
    for (int64_t step : {1, 2, 3}) ASSERT_TRUE(s.put_step("j", step, {{"step", step}}).ok());
    ASSERT_TRUE(s.put_eval("j", 2, {{"step", 2}}).ok());
    ASSERT_TRUE(s.add_log("j", 1, "line").ok());
    ASSERT_TRUE(s.put_checkpoint("j", 2, {{"step", 2}}).ok());
    ASSERT_TRUE(s.put_invite({"t-1", "hash", 99, 2, 0}).ok());
    ASSERT_TRUE(s.use_invite("t-1", "key", "p-1").ok());
    ASSERT_TRUE(s.set_meta("a", "b").ok());
  }
  auto reopened = open_sqlite_store(path);
  ASSERT_TRUE(reopened.ok());
  Store& s = **reopened;
  EXPECT_EQ(s.peers()->size(), 1u);
  EXPECT_EQ(s.jobs()->at(0).at("v"), 2);
  EXPECT_EQ(s.submission("j")->at("spec"), 1);
  EXPECT_EQ(s.events("j", 1, 10)->at(0).message, "n");
  EXPECT_EQ(*s.add_event("j", {0, 8, "state", "o", {}}), 3);
  EXPECT_EQ(s.decisions("j")->at(0).reason, "why");
  EXPECT_EQ(s.steps("j", 1, 10)->size(), 2u);
  EXPECT_EQ(s.evals("j", 0, 2)->size(), 1u);
  EXPECT_EQ(s.evals("j", 2, 9)->size(), 0u);
  EXPECT_EQ(*s.last_step("j"), 3);
  EXPECT_EQ(s.logs("j", 0, 10)->at(0).text, "line");
  EXPECT_EQ(s.checkpoints("j")->size(), 1u);
  EXPECT_EQ((*s.invite_by_hash("hash"))->used, 1);
  EXPECT_EQ(*s.invited_peer("t-1", "key"), "p-1");
  EXPECT_EQ(*s.invited_peer("t-1", "other"), "");
  EXPECT_EQ(*s.meta("a"), "b");
  ASSERT_TRUE(s.truncate_metrics("j", 1).ok());
  EXPECT_EQ(*s.last_step("j"), 1);
  ASSERT_TRUE(s.remove_job("j").ok());
  EXPECT_TRUE(s.jobs()->empty());
  EXPECT_TRUE(s.events("j", 0, 10)->empty());
  EXPECT_EQ(s.submission("j").error().code, Code::kNotFound);
}

TEST(Store, AFailedBatchChangesNothing) {
  auto store = open_sqlite_store(":memory:");
  ASSERT_TRUE(store.ok());
  const Status failed = (*store)->batch([&]() -> Status {
    WEFT_TRY_STATUS((*store)->put_peer("p", {{"id", "p"}}));
    WEFT_TRY([[maybe_unused]] const int64_t seq, (*store)->add_event("j", {0, 1, "k", "m", {}}));
    return make_error(Code::kInternal, "no");
  });
  EXPECT_FALSE(failed.ok());
  EXPECT_TRUE((*store)->peers()->empty());
  EXPECT_EQ(*(*store)->add_event("j", {0, 1, "k", "m", {}}), 1);
}

// A part that fails is undone alone, the whole with all its parts; numbers of events, too.
TEST(Store, ABatchWithinABatchIsAPartOfIt) {
  auto opened = open_sqlite_store(":memory:");
  ASSERT_TRUE(opened.ok());
  Store& store = **opened;
  const auto part = [&](const std::string& peer, const Status& end) {
    return store.batch([&]() -> Status {
      WEFT_TRY_STATUS(store.put_peer(peer, {{"id", peer}}));
      WEFT_TRY([[maybe_unused]] const int64_t seq, store.add_event("j", {0, 1, "k", "m", {}}));
      return end;
    });
  };
  const Status no = make_error(Code::kInternal, "no");
  const Status kept = store.batch([&]() -> Status {
    EXPECT_TRUE(part("a", {}).ok());
    EXPECT_FALSE(part("b", no).ok());
    return {};
  });
  EXPECT_TRUE(kept.ok());
  EXPECT_EQ(store.peers()->size(), 1u);
  const Status undone = store.batch([&]() -> Status {
    EXPECT_TRUE(part("c", {}).ok());
    return no;
  });
  EXPECT_EQ(undone.error().message, "no");
  EXPECT_EQ(store.peers()->size(), 1u);
  EXPECT_EQ(*store.add_event("j", {0, 1, "k", "m", {}}), 2);
  EXPECT_TRUE(part("d", {}).ok()) << "no transaction is left open";
  EXPECT_EQ(store.peers()->size(), 2u);
}

job::WorkerEvent step_event(int64_t step, double loss) {
  job::WorkerEvent event;
  event.kind = job::WorkerEventKind::kStep;
  event.step = step;
  event.loss = loss;
  event.tokens = 8;
  event.edge_bytes = {{0, 100}};
  return event;
}

TEST(StepLog, ReleasesARowWhenEveryStageAndTheDueEvaluationAreThere) {
  job::TrainSpec train;
  train.steps = 4;
  train.eval_every = 2;
  train.lr = 0.5;
  StepLog log(train, 2, true);
  log.add_step(0, step_event(1, 0.0 / 0.0));
  EXPECT_TRUE(log.take().empty());
  log.add_step(1, step_event(1, 3.5));
  auto rows = log.take();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].second["loss"], 3.5);
  EXPECT_EQ(rows[0].second["edges"]["0"], 200);
  EXPECT_EQ(rows[0].second["stages"].size(), 2u);
  log.add_step(0, step_event(2, 3));
  log.add_step(1, step_event(2, 3));
  EXPECT_TRUE(log.take().empty()) << "the evaluation after step 2 is due";
  job::WorkerEvent eval;
  eval.step = 2;
  eval.loss = 2.5;
  EXPECT_EQ(log.add_eval(eval)["loss"], 2.5);
  EXPECT_EQ(log.take().size(), 1u);
  log.add_step(0, step_event(3, 3));
  EXPECT_TRUE(log.take().empty());
  EXPECT_EQ(log.take(true).size(), 1u);
}

TEST(StepLog, AStageIsBusyForAsMuchOfItsStepAsIsKnown) {
  StepLog log({}, 1, false);
  int64_t step = 0;
  const auto busy = [&](double seconds, double compute_s) {
    job::WorkerEvent event = step_event(++step, 1);
    event.seconds = seconds;
    event.compute_s = compute_s;
    log.add_step(0, event);
    return log.take(true).at(0).second["stages"][0]["busy"];
  };
  EXPECT_EQ(busy(2, 0.5), 0.25);
  EXPECT_EQ(busy(2, 2.5), 1) << "of a longer step before";
  EXPECT_TRUE(busy(2, 0).is_null());
  EXPECT_TRUE(busy(0, 1).is_null());
}

TEST(StepLog, TheRateStandsStillWhileStepsAreSkipped) {
  job::TrainSpec train;
  train.steps = 8;
  train.warmup_steps = 8;
  train.lr = 8;
  StepLog log(train, 1, false);
  log.add_step(0, step_event(3, 1));
  job::WorkerEvent scaled = step_event(5, 1);
  scaled.loss_scale = 32768;
  scaled.skipped_steps = 2;
  log.add_step(0, scaled);
  const auto rows = log.take(true);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].second["lr"], 3);
  EXPECT_FALSE(rows[0].second.contains("loss_scale"));
  EXPECT_EQ(rows[1].second["lr"], 3);
  EXPECT_EQ(rows[1].second["loss_scale"], 32768);
  EXPECT_EQ(rows[1].second["skipped_steps"], 2);
}

}  // namespace
}  // namespace weft::broker
