// What lies on disk before a worker starts, from a broker that is a small HTTPS server here.
#include "daemon/prepare_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "job/safetensors.h"
#include "net/codec/graph_codec.h"
#include "opdag/text.h"
#include "tests/unit/daemon/worker_script.h"
#include "tests/unit/net/http_fixture.h"

namespace weft::daemon {
namespace {

using net::HttpReply;
using net::HttpRequest;
using nlohmann::json;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

opdag::Graph one_input() {
  opdag::Graph graph;
  opdag::Value value;
  value.id = 0;
  value.name = "x";
  value.meta.sizes = {2};
  value.meta.strides = {1};
  graph.values.push_back(value);
  opdag::Leaf leaf;
  leaf.kind = opdag::LeafKind::kUserInput;
  leaf.value = 0;
  leaf.target = "x";
  graph.leaves.push_back(leaf);
  return graph;
}

class PrepareFilesTest : public ::testing::Test {
 protected:
  PrepareFilesTest() {
    const net::Identity identity = cluster_.issue("p-1", "peer");
    member_.peer = "p-1";
    member_.certificate_pem = identity.certificate_pem;
    member_.key_pem = identity.key_pem;
    member_.ca_pem = cluster_.authority().ca_pem();
    broker_ = net::HttpServer::start(cluster_.server_options(), [this](HttpRequest request,
                                                                       const HttpReply& reply) {
                answer(request, reply);
              }).value();
    member_.broker_host = "127.0.0.1";
    member_.broker_port = broker_->port();
  }

  void answer(const HttpRequest& request, const HttpReply& reply) {
    if (net::serve_blob(at_broker_, request, true, 1 << 20, reply)) return;
    certificate_request_ = json::parse(request.body, nullptr, false);
    reply(certificate_answer_);
  }

  job::BlobRef stored(const std::string& content) {
    return {at_broker_.put(bytes_of(content)).value(), content.size(), ""};
  }

  proto::Prepare prepare(const job::WorkerSpec& spec) {
    proto::Prepare message;
    message.set_job("job");
    message.set_epoch(3);
    message.set_stage(1);
    message.set_worker_spec_json(job::worker_spec_to_json(spec).dump());
    return message;
  }
  job::WorkerSpec good_spec() {
    job::WorkerSpec spec = testing::worker_spec("job", 3, 1);
    spec.graph = stored(net::encode_graph(one_input()));
    spec.weights = {{"w", stored("weights")}};
    spec.data = {{"train", stored("tokens")}};
    return spec;
  }
  Result<job::WorkerSpec> run(const proto::Prepare& message) {
    return prepare_files(member_, here_, message, dir_ / "work", [] { return false; });
  }

  const os::Path dir_ = testing::fresh_dir("prepare_files");
  net::Cluster cluster_{"prepare_files"};
  net::BlobStore at_broker_ = net::BlobStore::open(dir_ / "broker").value();
  net::BlobStore here_ = net::BlobStore::open(dir_ / "here").value();
  net::HttpResponse certificate_answer_{
      .headers = {}, .body = R"({"certificate_pem":"a certificate"})", .file = {}, .source = {}};
  json certificate_request_;
  Membership member_;
  std::unique_ptr<net::HttpServer> broker_;
};

TEST_F(PrepareFilesTest, FetchesWritesAndCertifies) {
  const job::WorkerSpec asked = good_spec();
  const auto spec = run(prepare(asked));
  ASSERT_TRUE(spec.ok()) << spec.error().text();
  EXPECT_EQ(*os::read_file(spec->weights.at("w").path), "weights");
  EXPECT_EQ(*os::read_file(spec->data.at("train").path), "tokens");
  EXPECT_TRUE(opdag::parse_text(*os::read_file(spec->graph.path)).ok());
  EXPECT_TRUE(spec->eval_graph.path.empty());
  EXPECT_EQ(*os::read_file(spec->certificate_path), "a certificate");
  EXPECT_EQ(std::filesystem::status(spec->key_path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_EQ(certificate_request_["job"], "job");
  EXPECT_EQ(certificate_request_["stage"], 1);
  // A key of this assignment only, and no secret on the wire.
  EXPECT_NE(*os::read_file(spec->key_path), member_.key_pem);
  EXPECT_EQ(certificate_request_.dump().find("PRIVATE"), std::string::npos);
}

TEST_F(PrepareFilesTest, WhatIsInUseIsRememberedAsUsed) {
  const job::WorkerSpec asked = good_spec();
  const std::string name = here_.put(bytes_of("weights")).value();
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(9);
  std::filesystem::last_write_time(here_.path_of(name), old);
  ASSERT_TRUE(run(prepare(asked)).ok());
  EXPECT_GT(std::filesystem::last_write_time(here_.path_of(name)), old + std::chrono::hours(8));
}

TEST_F(PrepareFilesTest, APeerThatFailsIsSkipped) {
  const job::WorkerSpec asked = good_spec();
  proto::Prepare message = prepare(asked);
  auto* source = message.add_sources();
  source->set_sha256(asked.weights.at("w").sha256);
  auto* peer = source->add_peers();
  peer->set_peer("p-2");
  peer->set_host("127.0.0.1");
  peer->set_port(1);
  EXPECT_TRUE(run(message).ok());
}

TEST_F(PrepareFilesTest, SaysWhatItCannotFetch) {
  job::WorkerSpec spec = good_spec();
  spec.data["train"] = {sha256_hex("nowhere"), 7, ""};
  const auto absent = run(prepare(spec));
  ASSERT_FALSE(absent.ok());
  EXPECT_NE(absent.error().message.find("data train"), std::string::npos);
  EXPECT_NE(absent.error().message.find(sha256_hex("nowhere")), std::string::npos);
}

TEST_F(PrepareFilesTest, RefusesWhatContradictsItself) {
  for (const auto& spec : {testing::worker_spec("other", 3, 1), testing::worker_spec("job", 4, 1),
                           testing::worker_spec("job", 3, 0)}) {
    const auto made = run(prepare(spec));
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, Code::kInvalid);
  }
  proto::Prepare nonsense = prepare(good_spec());
  for (const char* text : {"", "{", "[]", "null", "{\"job\":7}"}) {
    nonsense.set_worker_spec_json(text);
    EXPECT_FALSE(run(nonsense).ok()) << text;
  }
}

TEST_F(PrepareFilesTest, AGraphThatDoesNotDecodeIsRefused) {
  job::WorkerSpec spec = good_spec();
  spec.graph = stored("no graph at all");
  EXPECT_FALSE(run(prepare(spec)).ok());
}

TEST_F(PrepareFilesTest, TheBrokersRefusalOfACertificateIsPassedOn) {
  const proto::Prepare message = prepare(good_spec());
  certificate_answer_ = net::problem_response(make_error(Code::kDenied, "not your stage"));
  auto denied = run(message);
  ASSERT_FALSE(denied.ok());
  EXPECT_EQ(denied.error().code, Code::kDenied);
  EXPECT_NE(denied.error().message.find("not your stage"), std::string::npos);
  certificate_answer_ = {};
  certificate_answer_.body = "{}";
  EXPECT_EQ(run(message).error().code, Code::kCorrupt);
}

TEST_F(PrepareFilesTest, ACancelledPreparationEnds) {
  const auto spec =
      prepare_files(member_, here_, prepare(good_spec()), dir_ / "work", [] { return true; });
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.error().code, Code::kCancelled);
}

TEST_F(PrepareFilesTest, AShardIsUploadedUnderItsHash) {
  job::Safetensors content;
  content.tensors["a"] = {DType::kUint8, {3}, Buffer(std::vector<std::byte>(3))};
  const os::Path file = dir_ / "shard";
  ASSERT_TRUE(job::write_safetensors(file, content).ok());
  const auto shard = upload_shard(member_, file, [] { return false; });
  ASSERT_TRUE(shard.ok()) << shard.error().text();
  EXPECT_EQ(shard->tensors_size(), 1);
  EXPECT_EQ(shard->tensors(0), "a");
  EXPECT_EQ(at_broker_.size_of(shard->sha256()).value(), shard->bytes());
  ASSERT_TRUE(os::write_file_atomic(file, std::string_view("no tensors")).ok());
  EXPECT_FALSE(upload_shard(member_, file, [] { return false; }).ok());
  EXPECT_FALSE(upload_shard(member_, dir_ / "absent", [] { return false; }).ok());
}

}  // namespace
}  // namespace weft::daemon
