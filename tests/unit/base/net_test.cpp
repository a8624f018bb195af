#include "base/os/net.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <vector>

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

class Connected : public ::testing::Test {
 protected:
  void SetUp() override {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(::listen(listener, 1), 0);
    ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
    sender = ::socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(::connect(sender, reinterpret_cast<sockaddr*>(&address), size), 0);
    receiver = ::accept(listener, nullptr, nullptr);
    ASSERT_GE(receiver, 0);
    ::close(listener);
  }
  void TearDown() override {
    ::close(sender);
    ::close(receiver);
  }
  // Until all has arrived.
  void send(size_t bytes) {
    std::thread reader([&] {
      std::vector<char> buffer(1 << 16);
      for (size_t got = 0; got < bytes;) {
        const ssize_t n = ::recv(receiver, buffer.data(), buffer.size(), 0);
        if (n <= 0) break;
        got += static_cast<size_t>(n);
      }
    });
    const std::vector<char> data(bytes);
    for (size_t sent = 0; sent < bytes;) {
      const ssize_t n = ::send(sender, data.data() + sent, bytes - sent, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
    reader.join();
  }
  int sender = -1, receiver = -1;
};

// All round trips of loopback are alike: it has seen the way full after a few.
TEST_F(Connected, BbrBeginsAnewWhereItIsToldTo) {
  if (set_congestion_control(sender, "bbr") != "bbr") {
    GTEST_SKIP() << "this machine has no bbr, or lets no program choose it";
  }
  EXPECT_EQ(bbr_phase(sender), BbrPhase::kStartup);
  for (int i = 0; i < 100 && bbr_phase(sender) == BbrPhase::kStartup; ++i) send(4 << 20);
  ASSERT_NE(bbr_phase(sender), BbrPhase::kStartup);
  const auto progress = tcp_progress(sender);
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->unsent, 0u);
  EXPECT_FALSE(progress->repairing);
  EXPECT_EQ(restart_congestion_control(sender), "bbr");
  EXPECT_EQ(bbr_phase(sender), BbrPhase::kStartup);
  send(1 << 20);
}

TEST_F(Connected, ARestartLeavesTheControlThatThereWas) {
  for (const char* control : {"reno", "cubic"}) {
    if (set_congestion_control(sender, control) != control) continue;
    EXPECT_EQ(restart_congestion_control(sender), control);
    EXPECT_EQ(bbr_phase(sender), BbrPhase::kUnknown) << control;
    send(100000);
  }
  EXPECT_EQ(bbr_phase(-1), BbrPhase::kUnknown);
}

}  // namespace
}  // namespace weft::os
