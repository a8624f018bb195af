// The link gate delays, limits, breaks and corrupts as told.
#include "net/gate/link_gate.h"

#include <gtest/gtest.h>

#include <boost/asio.hpp>
#include <chrono>
#include <thread>
#include <vector>

namespace weft::net {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point since) {
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

// A client, a gate and what the client reaches through it.
class GateTest : public ::testing::Test {
 protected:
  void open(LinkGateOptions options) {
    options.target_port = acceptor_.local_endpoint().port();
    gate_ = std::move(LinkGate::start(options)).value();
    client_.connect({asio::ip::address_v4::loopback(), gate_->port()});
    acceptor_.accept(server_);
  }
  double transfer_ms(size_t bytes) {
    const auto since = Clock::now();
    std::vector<char> data(bytes, 'a'), got(bytes);
    std::thread writer([&] { asio::write(client_, asio::buffer(data)); });
    asio::read(server_, asio::buffer(got));
    writer.join();
    EXPECT_EQ(got, data);
    return ms_since(since);
  }
  asio::io_context io_;
  tcp::acceptor acceptor_{io_, {asio::ip::address_v4::loopback(), 0}};
  tcp::socket client_{io_}, server_{io_};
  std::unique_ptr<LinkGate> gate_;
};

TEST_F(GateTest, AddsLatency) {
  LinkGateOptions options;
  options.latency_ms = 40;
  open(options);
  EXPECT_GE(transfer_ms(100), 40);
}

TEST_F(GateTest, LimitsBandwidth) {
  LinkGateOptions options;
  options.bandwidth_mbit_s = 80;  // 1 MB takes 100 ms
  open(options);
  EXPECT_GE(transfer_ms(1000000), 95);
  EXPECT_GT(gate_->stats().bytes_forward, 900000);  // the last piece is counted after it is out
}

TEST_F(GateTest, StallsWithoutClosing) {
  open({});
  gate_->stall(true);
  asio::write(client_, asio::buffer("hi", 2));
  server_.non_blocking(true);
  std::vector<char> got(2);
  boost::system::error_code ec;
  std::this_thread::yield();
  server_.read_some(asio::buffer(got), ec);
  EXPECT_EQ(ec, asio::error::would_block);
  server_.non_blocking(false);
  gate_->stall(false);
  EXPECT_EQ(asio::read(server_, asio::buffer(got), ec), 2u);
}

TEST_F(GateTest, CutsAfterBytes) {
  open({});
  gate_->cut_after(1000);
  boost::system::error_code ec;
  std::vector<char> data(1000, 'a');
  asio::write(client_, asio::buffer(data), ec);
  std::vector<char> got(2000);
  const size_t count = asio::read(server_, asio::buffer(got), ec);
  EXPECT_TRUE(ec);
  EXPECT_LE(count, 1000u);
  EXPECT_EQ(gate_->stats().cuts, 1);
}

TEST_F(GateTest, FlipsOneBit) {
  open({});
  gate_->corrupt_next();
  std::vector<char> data(500, 0), got(500);
  asio::write(client_, asio::buffer(data));
  asio::read(server_, asio::buffer(got));
  int differing = 0;
  for (char c : got) differing += c != 0;
  EXPECT_EQ(differing, 1);
}

}  // namespace
}  // namespace weft::net
