#include "daemon/membership.h"

#include <gtest/gtest.h>

#include "daemon/settings.h"

namespace weft::daemon {
namespace {

os::Path fresh_dir(const std::string& name) {
  const os::Path dir = os::Path(::testing::TempDir()) / name;
  EXPECT_TRUE(os::remove_all(dir).ok());
  return dir;
}

TEST(Membership, SaysHowToJoin) {
  auto member = load_membership(fresh_dir("never_joined"));
  ASSERT_FALSE(member.ok());
  EXPECT_EQ(member.error().code, Code::kNotFound);
  EXPECT_NE(member.error().next.find("weftd join"), std::string::npos);
}

TEST(Membership, RefusesADamagedFolder) {
  const os::Path dir = fresh_dir("damaged");
  ASSERT_TRUE(os::make_directories(dir).ok());
  for (const char* text : {"", "[]", "{\"peer\":\"p\"}", "{\"peer\":3}"}) {
    ASSERT_TRUE(os::write_file_atomic(dir / "membership.json", std::string_view(text)).ok());
    auto member = load_membership(dir);
    ASSERT_FALSE(member.ok()) << text;
    EXPECT_EQ(member.error().code, Code::kCorrupt) << text;
  }
}

TEST(Membership, AnUnreachableBrokerLeavesKeysForTheNextTry) {
  const os::Path dir = fresh_dir("unreachable");
  net::JoinAddress address;
  address.host = "127.0.0.1";
  address.port = 1;  // nothing listens there
  address.ca_fingerprint = std::string(64, 'a');
  address.token = "token";
  auto member = join_cluster(dir, net::to_text(address), "name");
  ASSERT_FALSE(member.ok());
  EXPECT_EQ(member.error().code, Code::kUnavailable);
  EXPECT_TRUE(os::read_file(dir / "peer.key").ok());
  EXPECT_FALSE(os::read_file(dir / "membership.json").ok());
}

TEST(Settings, EveryDefaultIsAcceptedByItsOwnBounds) {
  Config config = make_config();
  for (const Setting& setting : config.settings()) {
    EXPECT_TRUE(config.set_flag(setting.name, setting.default_value).ok()) << setting.name;
    EXPECT_FALSE(setting.help.empty()) << setting.name;
  }
  auto status = config.set_flag("thread", "3");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().text().find("threads"), std::string::npos);
}

}  // namespace
}  // namespace weft::daemon
