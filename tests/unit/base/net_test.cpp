#include "base/os/net.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace weft::os {
namespace {

TEST(CongestionControl, IsWhatTheSocketSaysAfterwards) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(fd, 0);
  const std::string own = set_congestion_control(fd, "");
  EXPECT_FALSE(own.empty());
  EXPECT_EQ(set_congestion_control(fd, "no-such-control"), own) << "an unknown one changes nothing";
  EXPECT_EQ(set_congestion_control(fd, "reno"), "reno") << "every Linux has it";
  EXPECT_EQ(set_congestion_control(fd, ""), "reno");
  ::close(fd);
  EXPECT_EQ(set_congestion_control(fd, "reno"), "");
}

}  // namespace
}  // namespace weft::os
