// The core with a store in memory: what it sends, keeps, sweeps and remembers over a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/log.h"
#include "broker/core.h"
#include "broker/sweep.h"
#include "graphs.h"
#include "net/codec/graph_codec.h"

namespace weft::broker {
namespace {

using ::testing::HasSubstr;

class FakeLink final : public PeerLink {
 public:
  void send(const std::string& peer, proto::BrokerMessage message, int32_t) override {
    sent.emplace_back(peer, std::move(message));
  }
  void allow(const std::string&, const std::string&) override {}
  void revoke(const std::string&) override {}
  std::vector<std::pair<std::string, proto::BrokerMessage>> sent;
};

class CoreTest : public ::testing::Test {
 protected:
  CoreTest()
      : dir_(os::Path(::testing::TempDir()) /
             (std::string("weft_core_") +
              ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    EXPECT_TRUE(os::remove_all(dir_).ok());
    store_ = open_sqlite_store(":memory:").value();
    blobs_.emplace(net::BlobStore::open(dir_).value());
    restart();
  }
  ~CoreTest() override { (void)os::remove_all(dir_).ok(); }
  void restart() {
    core_ = std::make_unique<Core>(*store_, *blobs_, clock_, CoreOptions{});
    core_->set_link(&link_);
    EXPECT_TRUE(core_->load().ok());
  }
  job::BlobRef put(const std::string& bytes) {
    const auto name = blobs_->put(std::as_bytes(std::span(bytes.data(), bytes.size())));
    return {name.value(), bytes.size(), ""};
  }
  void age(const os::Path& file, int hours) {
    std::filesystem::last_write_time(
        file, std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours));
  }
  nlohmann::json body_of(const Submission& submission) {
    const auto blob = [](const job::BlobRef& ref) {
      return nlohmann::json{{"sha256", ref.sha256}, {"bytes", ref.bytes}};
    };
    return {{"spec", job::spec_to_json(submission.spec)},
            {"graph", blob(submission.graph)},
            {"eval_graph", blob(submission.eval_graph)},
            {"weights", nlohmann::json::object()},
            {"init", nullptr},
            {"data", nlohmann::json::object()},
            {"token_dtype", ""}};
  }
  Submission submission() {
    Submission made;
    made.spec = testing::chain_spec(16);
    made.graph = made.eval_graph = put(net::encode_graph(testing::chain_graph(2, 4, 8)));
    return made;
  }
  void submit(const std::string& id) {
    const Submission made = submission();
    JobGraphs graphs{testing::chain_graph(2, 4, 8), testing::chain_graph(2, 4, 8)};
    ASSERT_TRUE(core_->submit(id, body_of(made), made, std::move(graphs)).ok());
  }
  void hello(const std::string& peer) {
    ASSERT_TRUE(core_->admit(PeerJoined{peer, peer, "curve-" + peer, "key-" + peer}).ok());
    proto::PeerMessage message;
    message.set_session(1);
    message.mutable_hello()->mutable_capabilities()->set_cores(2);
    core_->on_message(peer, message);
  }

  VirtualClock clock_;
  os::Path dir_;
  std::unique_ptr<Store> store_;
  std::optional<net::BlobStore> blobs_;
  FakeLink link_;
  std::unique_ptr<Core> core_;
};

TEST_F(CoreTest, ALostHelloIsAskedForInAWelcome) {
  ASSERT_TRUE(core_->admit(PeerJoined{"p-1", "a", "curve", "key"}).ok());
  proto::PeerMessage beat;
  beat.set_session(5);
  beat.mutable_heartbeat()->set_sequence(1);
  core_->on_message("p-1", beat);
  ASSERT_EQ(link_.sent.size(), 1u);
  EXPECT_TRUE(link_.sent[0].second.welcome().hello_wanted());
}

TEST_F(CoreTest, RemovedPeersAreToldToTheOthersAndOutliveARestart) {
  hello("p-1");
  hello("p-2");
  link_.sent.clear();
  ASSERT_TRUE(core_->command(RemovePeer{"p-1"}).ok());
  const auto revoked_of = [](const proto::Welcome& welcome) {
    return std::vector<std::string>(welcome.revoked().begin(), welcome.revoked().end());
  };
  const auto& last = link_.sent.back();
  EXPECT_EQ(last.first, "p-2");
  EXPECT_EQ(revoked_of(last.second.welcome()), std::vector<std::string>{"p-1"});
  restart();
  hello("p-3");
  EXPECT_EQ(revoked_of(link_.sent.back().second.welcome()), std::vector<std::string>{"p-1"});
}

nlohmann::json profile_json() {
  job::DeviceProfile profile;
  profile.device = "cpu";
  for (job::MeasuredCosts* measured : {&profile.fp32, &profile.bf16}) {
    measured->costs = job::plain_costs(2e-11, 1e-10, 1e-6);
    measured->errors.fill({0.05, 0.05, 8});
  }
  return job::profile_to_json(profile);
}

TEST_F(CoreTest, AProfileIsKeptWithItsPeerAndPlannedWith) {
  hello("p-1");
  const std::string profile_text = profile_json().dump();
  nlohmann::json boast = profile_json();
  boast["fp32"]["matrix"]["forward"]["gflops"] = 1e12;
  const auto tell = [&](const std::string& text) {
    proto::PeerMessage message;
    message.mutable_profile()->set_profile_json(text);
    core_->on_message("p-1", message);
    return core_->state().peers.at("p-1").profile;
  };
  EXPECT_EQ(tell("{}"), nullptr);
  EXPECT_EQ(tell(std::string(100000, ' ')), nullptr);
  EXPECT_EQ(tell(boast.dump()), nullptr) << "no device is that fast";
  const auto known = tell(profile_text);
  ASSERT_NE(known, nullptr);
  EXPECT_EQ(tell(profile_text), known) << "told again in another session";
  EXPECT_EQ(tell("nonsense"), known) << "what was good before stays";
  restart();
  hello("p-1");
  const auto kept = core_->state().peers.at("p-1").profile;
  ASSERT_NE(kept, nullptr);
  const auto matrix = static_cast<size_t>(job::OpClass::kMatrix);
  EXPECT_NEAR(kept->fp32.costs[matrix].forward.flop_s, 2e-11, 1e-15);
  submit("j");
  clock_.advance_ms(2000);
  core_->tick();
  const Job& job = core_->state().jobs.at("j");
  ASSERT_TRUE(job.plan) << job.reason;
  EXPECT_GT(job.plan->stages.at(0).compute_s, 0);
  EXPECT_EQ(job.plan->stages.at(0).correction, 1);
}

TEST_F(CoreTest, LogLinesAreBoundedPerMessage) {
  hello("p-1");
  submit("j");
  core_->tick();
  ASSERT_EQ(core_->state().jobs.at("j").stages.size(), 0u) << "auto waits for more peers";
  clock_.advance_ms(2000);
  core_->tick();
  ASSERT_EQ(core_->state().jobs.at("j").stages.size(), 1u) << core_->state().jobs.at("j").reason;
  proto::PeerMessage message;
  message.mutable_logs()->set_job("j");
  for (int i = 0; i < 5000; ++i) message.mutable_logs()->add_lines("line");
  core_->on_message("p-1", message);
  const auto rows = store_->logs("j", 0, 10000);
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->size(), 1001u);
  EXPECT_THAT(rows->back().text, HasSubstr("4000 lines"));
}

TEST_F(CoreTest, AFloodOfWrongMessagesIsFewLinesOfLog) {
  log_init("core-test", LogLevel::kInfo, false);
  hello("p-1");
  proto::PeerMessage report, checkpoint;
  report.mutable_report()->set_event_json(R"({"event":"no such event"})");
  checkpoint.mutable_checkpoint()->set_sha256("not stored");
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 1000; ++i) {
    core_->on_message("p-1", report);
    core_->on_message("p-1", checkpoint);
  }
  clock_.advance_ms(60000);
  core_->on_message("p-1", report);
  const std::string written = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 11) << written.substr(0, 2000);
  EXPECT_THAT(written, HasSubstr("(1990 more left out)"));
}

TEST_F(CoreTest, TheSpecAndTheBlobsOfAJobAreKnownAfterARestart) {
  submit("j");
  EXPECT_EQ(core_->spec_of("j")["name"], "chain");
  restart();
  EXPECT_EQ(core_->spec_of("j")["name"], "chain");
  EXPECT_TRUE(core_->spec_of("k").is_null());
}

TEST_F(CoreTest, SweepsWhatIsOldAndNamedByNobody) {
  submit("j");
  const job::BlobRef graph = core_->loaded("j").value()->submission.graph;
  const job::BlobRef old = put("old"), fresh = put("fresh"), wanted = put("wanted");
  const std::string part = sha256_hex("part");
  ASSERT_TRUE(blobs_->append(part, 0, {}).ok());
  for (const auto& ref : {graph, old, wanted}) age(blobs_->path_of(ref.sha256), 30);
  age(dir_ / "partial" / part, 30);
  const auto files = blobs_->files();
  EXPECT_EQ(files.size(), 5u);
  blobs_->touch(wanted.sha256);  // somebody asks between the listing and the sweep
  core_->sweep(files);
  EXPECT_TRUE(blobs_->has(graph.sha256));
  EXPECT_TRUE(blobs_->has(fresh.sha256));
  EXPECT_TRUE(blobs_->has(wanted.sha256));
  EXPECT_FALSE(blobs_->has(old.sha256));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "partial" / part));
  ASSERT_TRUE(core_->command(CancelJob{"j", ""}).ok());
  ASSERT_TRUE(core_->command(DeleteJob{"j"}).ok());
  EXPECT_FALSE(blobs_->has(graph.sha256)) << "a deleted job's blobs go at once";
}

TEST(Sweep, KeepsWhatIsReferencedOrYoung) {
  const auto file = [](const char* name, bool complete, int64_t age_ms) {
    return net::BlobFile{name, name, complete, 1, age_ms};
  };
  const auto stale = files_to_sweep(
      {file("a", true, 100), file("b", true, 100), file("c", true, 99), file("a", false, 100)},
      {"a"}, 100);
  ASSERT_EQ(stale.size(), 2u);
  EXPECT_EQ(stale[0].name, "b");
  EXPECT_FALSE(stale[1].complete) << "a partial copy of a referenced blob is no reference";
}

TEST_F(CoreTest, EvalBatchesAreCountedInMicroBatchesOfTheEvalGraph) {
  Submission made = submission();
  JobGraphs graphs{testing::chain_graph(2, 4, 8), testing::chain_graph(2, 8, 8)};
  const auto npy = [&](int rows) {
    std::string header =
        fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, 8), }}", rows);
    while ((10 + header.size() + 1) % 64 != 0) header += ' ';
    header += '\n';
    std::string bytes("\x93NUMPY\x01\x00", 8);
    bytes += static_cast<char>(header.size() & 255);
    bytes += static_cast<char>(header.size() >> 8);
    return put(bytes + header + std::string(static_cast<size_t>(rows * 8 * 4), '\0'));
  };
  const auto settle = [&](const job::BlobRef& data) -> Result<int64_t> {
    Submission copy = made;
    copy.data = {{"eval/features", data}, {"eval/targets", data}};
    WEFT_TRY_STATUS(settle_eval_batches(copy, graphs, *blobs_));
    return copy.spec.train.eval_batches;
  };
  EXPECT_EQ(settle(npy(20)).value(), 2);
  EXPECT_EQ(settle(npy(7)).error().code, Code::kInvalid);
  EXPECT_EQ(settle({std::string(64, 'a'), 10, ""}).error().code, Code::kNotFound);
}

}  // namespace
}  // namespace weft::broker
