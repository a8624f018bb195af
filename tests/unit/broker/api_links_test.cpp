// What the API tells of links, without sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "broker/api/api.h"
#include "link_world.h"

namespace weft::broker {
namespace {

using ::testing::HasSubstr;

class ApiLinksTest : public ::testing::Test {
 protected:
  ApiLinksTest() {
    for (int i = 0; i < 6; ++i) {
      network_.add_site({.x_ms = 4.0 * i, .height_ms = 2, .up_mbit_s = 20, .down_mbit_s = 100}, 1);
    }
    world_.run_s(120);
  }
  std::pair<int, Json> get(const std::string& path,
                           const std::map<std::string, std::string>& query = {}) {
    net::HttpRequest request;
    request.method = "GET";
    request.path = path;
    request.query = query;
    request.headers["authorization"] = "Bearer token";
    std::pair<int, Json> result;
    api_.handle(request, [&](const net::HttpResponse& response) {
      result = {response.status, Json::parse(response.body, nullptr, false)};
    });
    return result;
  }

  SyntheticNetwork network_{3};
  LinkWorld world_{network_};
  os::Path dir_ = os::Path(::testing::TempDir()) / "weft_api_links";
  net::Authority authority_ = net::Authority::open(dir_).value();
  Api api_{world_.core(), authority_, ApiIdentity{"token", "", "", "", 0, 0}};
};

TEST_F(ApiLinksTest, EveryDirectionWithWhatIsKnownOfIt) {
  const auto [status, all] = get("/api/v1/links");
  ASSERT_EQ(status, 200);
  EXPECT_TRUE(all.at("inferred").get<bool>());
  ASSERT_EQ(all.at("links").size(), 30u);
  size_t inferred = 0;
  for (const Json& link : all.at("links")) {
    const std::string from = link.at("from"), to = link.at("to");
    EXPECT_EQ(link.at("path"), "wan");
    EXPECT_LE(link.at("latency_low_ms"), link.at("latency_ms"));
    EXPECT_LE(link.at("latency_ms"), link.at("latency_high_ms"));
    EXPECT_NEAR(link.at("bandwidth_mbit_s").get<double>(), 20, 4);
    EXPECT_EQ(link.at("known_by"), link.at("measured").get<bool>() ? "probe" : "inference");
    if (link.at("measured").get<bool>()) {
      EXPECT_GT(link.at("time_ms"), 0);
      EXPECT_NEAR(link.at("latency_ms").get<double>() / network_.latency_ms(from, to), 1, 0.1);
    } else {
      EXPECT_TRUE(link.at("time_ms").is_null());
      ++inferred;
    }
  }
  EXPECT_GT(inferred, 0u);
  ASSERT_EQ(all.at("lines").size(), 6u);
  EXPECT_NEAR(all["lines"][0].at("up_mbit_s").get<double>(), 20, 4);
}

TEST_F(ApiLinksTest, SomePeersOnly) {
  const auto ids = world_.ids();
  const auto [status, two] = get("/api/v1/links", {{"peers", ids[0] + "," + ids[1]}});
  ASSERT_EQ(status, 200);
  EXPECT_EQ(two.at("links").size(), 2u);
  world_.core().apply(DrainPeer{ids[0]});
  EXPECT_EQ(get("/api/v1/links", {{"peers", "idle"}}).second.at("links").size(), 20u);
  const auto [missing, problem] = get("/api/v1/links", {{"peers", ids[0] + ",p-nobody"}});
  EXPECT_EQ(missing, 404);
  EXPECT_THAT(problem.at("detail").get<std::string>(), HasSubstr("p-nobody"));
  EXPECT_EQ(get("/api/v1/links", {{"peers", ""}}).first, 404);
}

TEST_F(ApiLinksTest, APeerKnowsItsLine) {
  const auto [status, peer] = get("/api/v1/peers/" + world_.ids()[0]);
  ASSERT_EQ(status, 200);
  const Json& line = peer.at("line");
  EXPECT_NEAR(line.at("up_mbit_s").get<double>(), 20, 4);
  EXPECT_NEAR(line.at("shared_up_mbit_s").get<double>(), 20, 4);
  EXPECT_TRUE(line.at("site").empty());
}

TEST_F(ApiLinksTest, OfVeryManyPeersOnlyWhatWasMeasured) {
  for (int i = 0; i < 130; ++i) {
    const std::string id = "q-" + std::to_string(i);
    ASSERT_TRUE(world_.core().admit(PeerJoined{id, id, "curve-" + id, "key-" + id}).ok());
  }
  const auto [status, all] = get("/api/v1/links");
  ASSERT_EQ(status, 200);
  EXPECT_FALSE(all.at("inferred").get<bool>());
  EXPECT_EQ(all.at("links").size(), world_.core().links().directions());
  for (const Json& link : all.at("links")) EXPECT_TRUE(link.at("measured").get<bool>());
}

}  // namespace
}  // namespace weft::broker
