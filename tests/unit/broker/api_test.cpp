// The API over real loopback HTTPS: Service with its servers, HttpClient against it.
#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/os/folder_lock.h"
#include "broker/service.h"
#include "graphs.h"
#include "net/codec/graph_codec.h"
#include "net/http/http.h"

namespace weft::broker {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

class ApiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = os::Path(::testing::TempDir()) /
           ("weft_api_" +
            std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    ASSERT_TRUE(os::remove_all(dir_).ok());
    start();
  }
  void TearDown() override {
    service_.reset();
    (void)os::remove_all(dir_);
  }
  void start() {
    auto home = open_home(dir_);
    ASSERT_TRUE(home.ok()) << home.error().text();
    token_ = home->admin_token;
    fingerprint_ = home->authority.fingerprint();
    auto service = Service::start(std::move(home).value(), {}, clock_);
    ASSERT_TRUE(service.ok()) << service.error().text();
    service_ = std::move(service).value();
  }
  net::HttpClient client(const std::string& token) {
    net::HttpClientOptions options;
    options.host = "127.0.0.1";
    options.port = service_->http_port();
    options.ca_fingerprint = fingerprint_;
    options.bearer_token = token;
    return net::HttpClient(options);
  }
  std::pair<int, Json> call(const std::string& method, const std::string& target,
                            const Json& body = nullptr) {
    auto http = client(token_);
    auto response = http.request(method, target, body.is_null() ? "" : body.dump());
    EXPECT_TRUE(response.ok()) << response.error().text();
    if (!response.ok()) return {0, nullptr};
    return {response->status, Json::parse(response->body, nullptr, false)};
  }
  Json put_blob(const std::string& bytes) {
    const std::string name = sha256_hex(std::string_view(bytes));
    auto http = client(token_);
    auto response = http.request(
        "PUT", fmt::format("/api/v1/blobs/{}?offset=0&total={}", name, bytes.size()), bytes);
    EXPECT_TRUE(response.ok() && response->status == 200);
    return {{"sha256", name}, {"bytes", bytes.size()}};
  }
  static std::string npy(int64_t rows, int64_t columns) {
    std::string header = fmt::format(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
    while ((10 + header.size() + 1) % 64 != 0) header += ' ';
    header += '\n';
    std::string file("\x93NUMPY\x01\x00", 8);
    file += static_cast<char>(header.size() & 255);
    file += static_cast<char>(header.size() >> 8);
    return file + header + std::string(static_cast<size_t>(rows * columns * 4), '\0');
  }
  Json submission(int64_t rows = 64) {
    const opdag::Graph graph = testing::chain_graph(4, 4, 8);
    const Json wire = put_blob(net::encode_graph(graph));
    Json weights = Json::object();
    for (const opdag::Leaf& leaf : graph.leaves) {
      if (leaf.kind != opdag::LeafKind::kParameter) continue;
      weights[leaf.weight.path] = put_blob(std::string(leaf.weight.bytes, 'w'));
    }
    const Json data = put_blob(npy(rows, 8));
    return {{"spec", job::spec_to_json(testing::chain_spec(16))},
            {"graph", wire},
            {"eval_graph", wire},
            {"weights", weights},
            {"init", nullptr},
            {"data", {{"train/features", data}, {"train/targets", data}}},
            {"token_dtype", ""}};
  }
  Json join_body(const std::string& address, const net::KeyPair& key) {
    return {{"token", net::parse_join_address(address)->token},
            {"request_pem", *net::make_request_pem(key, "me")},
            {"curve_public", curve_.public_z85},
            {"name", "desk"}};
  }

  SystemClock clock_;
  os::Path dir_;
  std::string token_, fingerprint_;
  net::CurveKeys curve_ = net::make_curve_keys();
  std::unique_ptr<Service> service_;
};

TEST_F(ApiTest, OnlyTheTokenOpensIt) {
  EXPECT_EQ(call("GET", "/livez").second["status"], "ok");
  EXPECT_EQ(call("GET", "/api/v1/cluster").second["ca_fingerprint"], fingerprint_);
  for (const char* wrong : {"", "wrong"}) {
    auto http = client(wrong);
    const auto response = http.request("GET", "/api/v1/cluster");
    ASSERT_TRUE(response.ok());
    EXPECT_EQ(net::error_from_response(response.value()).code, Code::kDenied);
    EXPECT_EQ(http.request("GET", "/livez")->status, 200);
  }
  EXPECT_EQ(call("GET", "/api/v1/nonsense").first, 404);
  EXPECT_EQ(call("PUT", "/api/v1/jobs").first, 405);
  auto http = client(token_);
  EXPECT_THAT(http.request("GET", "/metrics")->body, HasSubstr("weft_peers{state=\"idle\"} 0"));
}

TEST_F(ApiTest, JoinTakesATokenOnceAndLetsTheSameKeyRetry) {
  const Json invite = call("POST", "/api/v1/invites", {{"ttl_s", 60}, {"uses", 1}}).second;
  const auto key = net::make_key();
  ASSERT_TRUE(key.ok());
  const Json body = join_body(invite["address"], *key);
  const auto [status, joined] = call("POST", "/api/v1/join", body);
  ASSERT_EQ(status, 200) << joined.dump();
  EXPECT_EQ(net::read_certificate(joined["certificate_pem"])->subject,
            joined["peer"].get<std::string>());
  EXPECT_EQ(call("POST", "/api/v1/join", body).second["peer"], joined["peer"]);
  const Json other = join_body(invite["address"], *net::make_key());
  const auto second = call("POST", "/api/v1/join", other);
  EXPECT_EQ(second.first, 403);
  EXPECT_THAT(second.second["detail"].get<std::string>(), HasSubstr("used 1 time already"));
  Json wrong = body;
  wrong["token"] = "0000";
  EXPECT_EQ(call("POST", "/api/v1/join", wrong).first, 403);
  wrong["surprise"] = 1;
  EXPECT_EQ(call("POST", "/api/v1/join", wrong).first, 400);

  const std::string peer = joined["peer"];
  EXPECT_EQ(call("GET", "/api/v1/peers/" + peer).second["state"], "joining");
  EXPECT_EQ(call("GET", "/api/v1/peers").second["peers"].size(), 1u);
  EXPECT_EQ(call("POST", "/api/v1/peers/" + peer + "/drain").second["state"], "draining");

  // A peer's routes, by its certificate alone.
  net::HttpClientOptions options;
  options.host = "127.0.0.1";
  options.port = service_->http_port();
  options.ca_pem = joined["ca_pem"];
  options.certificate_pem = joined["certificate_pem"];
  options.key_pem = key->private_pem;
  const Json ask = {{"job", "j-1"}, {"epoch", 1}, {"stage", 0}, {"request_pem", "x"}};
  const std::string route = "/api/v1/assignments/certificate";
  net::HttpClient as_peer(options);
  auto refused = as_peer.request("POST", route, ask.dump());
  ASSERT_TRUE(refused.ok()) << refused.error().text();
  EXPECT_THAT(refused->body, HasSubstr("does not hold stage 0"));
  EXPECT_EQ(call("POST", route, ask).first, 403) << "a user is no peer";
  EXPECT_EQ(call("DELETE", "/api/v1/peers/" + peer).first, 204);
  refused = as_peer.request("POST", route, ask.dump());
  EXPECT_THAT(refused->body, HasSubstr("revoked"));
}

// What the disk refuses, or a crash cuts off, must not use up a token without making a peer.
TEST_F(ApiTest, ATokenIsUsedAndItsPeerStoredTogetherOrNotAtAll) {
  for (const char* table : {"peers", "invite_uses", "events"}) {
    const Json invite = call("POST", "/api/v1/invites", {{"uses", 1}}).second;
    const Json body = join_body(invite["address"], *net::make_key());
    SQLite::Database other((dir_ / "broker.db").string(), SQLite::OPEN_READWRITE, 5000);
    other.exec(
        fmt::format("CREATE TRIGGER refuse BEFORE INSERT ON {} "
                    "BEGIN SELECT RAISE(ABORT, 'the disk is full'); END",
                    table));
    const auto [status, problem] = call("POST", "/api/v1/join", body);
    EXPECT_GE(status, 500) << table;
    EXPECT_THAT(problem["detail"].get<std::string>(), HasSubstr("the disk is full"));
    EXPECT_TRUE(call("GET", "/api/v1/peers").second["peers"].empty()) << table;
    other.exec("DROP TRIGGER refuse");
    EXPECT_EQ(other.execAndGet("SELECT count(*) FROM peers").getInt(), 0);
    EXPECT_EQ(other.execAndGet("SELECT count(*) FROM invite_uses").getInt(), 0);
    // The token still holds, for another key, too: once.
    const auto [joined, answer] =
        call("POST", "/api/v1/join", join_body(invite["address"], *net::make_key()));
    EXPECT_EQ(joined, 200) << answer.dump();
    EXPECT_EQ(call("POST", "/api/v1/join", body).first, 403);
    EXPECT_EQ(call("DELETE", "/api/v1/peers/" + answer["peer"].get<std::string>()).first, 204);
    other.exec("DELETE FROM invite_uses");
  }
}

TEST_F(ApiTest, AFailedRejoinLeavesThePeerAsItWas) {
  const Json first = call("POST", "/api/v1/invites", {{"uses", 1}}).second;
  const auto key = net::make_key();
  const auto [status, joined] = call("POST", "/api/v1/join", join_body(first["address"], *key));
  ASSERT_EQ(status, 200);
  const std::string route = "/api/v1/peers/" + joined["peer"].get<std::string>();
  Json again = join_body(call("POST", "/api/v1/invites", {{"uses", 1}}).second["address"], *key);
  again["name"] = "renamed";
  SQLite::Database other((dir_ / "broker.db").string(), SQLite::OPEN_READWRITE, 5000);
  other.exec("CREATE TRIGGER refuse BEFORE INSERT ON peers BEGIN SELECT RAISE(ABORT, 'no'); END");
  EXPECT_GE(call("POST", "/api/v1/join", again).first, 500);
  EXPECT_EQ(call("GET", route).second["name"], "desk");
  other.exec("DROP TRIGGER refuse");
  EXPECT_EQ(call("POST", "/api/v1/join", again).second["peer"], joined["peer"]);
  EXPECT_EQ(call("GET", route).second["name"], "renamed");
}

TEST_F(ApiTest, AJobWaitsForPeersIsCancelledResumedAndDeleted) {
  const Json body = submission();
  const auto dry = call("POST", "/api/v1/plans", body);
  EXPECT_EQ(dry.second["code"], "unavailable");
  EXPECT_THAT(dry.second["detail"].get<std::string>(), HasSubstr("no peers"));
  const auto [status, job] = call("POST", "/api/v1/jobs", body);
  ASSERT_EQ(status, 201) << job.dump();
  EXPECT_EQ(job["state"], "queued");
  EXPECT_THAT(job["reason"].get<std::string>(), HasSubstr("waiting for 1 peer"));
  EXPECT_EQ(job["spec"]["name"], "chain");
  const std::string route = "/api/v1/jobs/" + job["id"].get<std::string>();
  EXPECT_EQ(call("GET", "/api/v1/jobs/chain").second["id"], job["id"]);
  const Json events = call("GET", route + "/events?after=0&wait_ms=1000").second;
  ASSERT_FALSE(events["events"].empty());
  EXPECT_EQ(call("GET", route + "/explain").second["decisions"][0]["decision"], "wait");
  EXPECT_EQ(call("GET", route + "/metrics?after=0").second["next"], 0);
  EXPECT_TRUE(call("GET", route + "/logs").second["lines"].empty());
  EXPECT_TRUE(call("GET", route + "/checkpoints").second["checkpoints"].empty());
  EXPECT_EQ(call("DELETE", route).first, 400) << "only ended jobs";
  EXPECT_EQ(call("POST", route + "/cancel", {{"reason", "test"}}).second["state"], "cancelled");
  EXPECT_EQ(call("POST", route + "/resume", {{"stages", 2}}).second["epoch"], 2);
  EXPECT_EQ(call("POST", route + "/cancel").second["state"], "cancelled");
  const std::string blob = "/api/v1/blobs/" + body["graph"]["sha256"].get<std::string>();
  auto http = client(token_);
  EXPECT_EQ(http.request("HEAD", blob)->status, 200);
  // A restart keeps it all; the ports as well.
  const uint16_t port = service_->http_port();
  service_.reset();
  start();
  EXPECT_EQ(call("GET", route).second["state"], "cancelled");
  EXPECT_EQ(service_->http_port(), port);
  EXPECT_EQ(call("DELETE", route).first, 204);
  EXPECT_EQ(call("GET", route).first, 404);
  auto again = client(token_);
  EXPECT_EQ(again.request("HEAD", blob)->status, 404) << "its blobs go with it";
}

TEST_F(ApiTest, BadSubmissionsAreRefusedByName) {
  const Json good = submission();
  const auto refused = [&](const Json& body, const char* why) {
    const auto [status, problem] = call("POST", "/api/v1/jobs", body);
    EXPECT_GE(status, 400);
    EXPECT_THAT(problem["detail"].get<std::string>(), HasSubstr(why));
  };
  Json bad = good;
  bad["surprise"] = 1;
  refused(bad, "surprise");
  bad = good;
  bad["spec"]["train"]["batch"] = 6;
  refused(bad, "not a multiple of the exported batch 4");
  bad = good;
  bad["spec"]["train"]["batch"] = 128;
  refused(bad, "too few samples");
  bad = good;
  bad["spec"]["pipeline"]["stages"] = 999;
  refused(bad, "more stages than nodes");
  bad = good;
  bad["graph"]["sha256"] = std::string(64, 'a');
  refused(bad, "not stored");
  bad = good;
  bad["data"].erase("train/targets");
  refused(bad, "no data train/targets");
  bad = good;
  bad["weights"].erase(bad["weights"].begin().key());
  refused(bad, "are not among");
  refused(Json::array(), "must be a JSON object");
}

TEST(Home, ASecondBrokerOnTheFolderIsRefused) {
  const os::Path dir = os::Path(::testing::TempDir()) / "weft_lock_test";
  ASSERT_TRUE(os::make_directories(dir).ok());
  const auto first = os::FolderLock::take(dir);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(os::FolderLock::take(dir).error().code, Code::kExists);
}

TEST(Home, TheLoginCommandIsWhatWeftLoginTakes) {
  EXPECT_EQ(login_command("broker.lan", 7400, "aa", "bb"),
            "weft login https://broker.lan:7400 --ca-pin aa --token bb");
  EXPECT_EQ(login_command("::1", 1, "a", "b"), "weft login https://[::1]:1 --ca-pin a --token b");
  const os::Path dir = os::Path(::testing::TempDir()) / "weft_running_test";
  ASSERT_TRUE(os::make_directories(dir).ok());
  ASSERT_TRUE(write_running(dir, {7400, 7401, "aa"}).ok());
  EXPECT_EQ(read_running(dir)->http_port, 7400);
  remove_running(dir);
  EXPECT_EQ(read_running(dir).error().code, Code::kNotFound);
}

}  // namespace
}  // namespace weft::broker
