// Control server and clients over loopback: who gets in, what survives restarts, who may be whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "base/log.h"
#include "net/control/control.h"
#include "net/control/socket.h"

namespace weft::net {
namespace {

using namespace std::chrono_literals;

// What callbacks saw; waiting has a deadline.
class Record {
 public:
  void add(const std::string& text) {
    std::lock_guard lock(mutex_);
    seen_.push_back(text);
    changed_.notify_all();
  }
  bool wait_for(size_t count, std::chrono::milliseconds deadline = 15s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, deadline, [&] { return seen_.size() >= count; });
  }
  std::vector<std::string> seen() {
    std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> seen_;
};

proto::PeerMessage leaving(const std::string& reason) {
  proto::PeerMessage message;
  message.mutable_leaving()->set_reason(reason);
  return message;
}
proto::PeerMessage heartbeat(uint64_t sequence) {
  proto::PeerMessage message;
  message.mutable_heartbeat()->set_sequence(sequence);
  return message;
}
proto::BrokerMessage drain(const std::string& reason) {
  proto::BrokerMessage message;
  message.mutable_drain()->set_reason(reason);
  return message;
}

class ControlTest : public ::testing::Test {
 protected:
  std::unique_ptr<ControlServer> serve(uint16_t port = 0) {
    ControlServerOptions options;
    options.port = port;
    options.keys = server_keys_;
    auto server = ControlServer::start(options, [this](const std::string& peer, const auto& m) {
      at_server_.add(peer + ":" +
                     (m.has_leaving()     ? m.leaving().reason()
                      : m.has_heartbeat() ? "heartbeat"
                                          : "other"));
    });
    EXPECT_TRUE(server.ok()) << (server.ok() ? "" : server.error().message);
    return std::move(server).value();
  }
  std::unique_ptr<ControlClient> join(uint16_t port, const CurveKeys& keys, Record& record,
                                      int32_t rebuild_ms = 300) {
    ControlClientOptions options;
    options.host = "127.0.0.1";
    options.port = port;
    options.server_key_z85 = server_keys_.public_z85;
    options.keys = keys;
    options.rebuild_after_ms = rebuild_ms;
    options.reconnect_max_ms = 200;
    auto client = ControlClient::start(options, [&record](const auto& m) {
      record.add(m.has_drain() ? m.drain().reason() : "?");
    });
    EXPECT_TRUE(client.ok()) << (client.ok() ? "" : client.error().message);
    return std::move(client).value();
  }

  // The server's thread lists keys, in order; a socket made by hand that comes before its key is
  // refused for good. So it comes after a peer got in that was listed later.
  std::unique_ptr<ControlClient> admit_b_and_join_a(ControlServer& server) {
    server.allow(b_.public_z85, "p-b");
    server.allow(a_.public_z85, "p-a");
    auto a = join(server.port(), a_, at_a_);
    a->send(leaving("knock"), 20000);
    EXPECT_TRUE(at_server_.wait_for(1));
    return a;
  }

  CurveKeys server_keys_ = make_curve_keys();
  CurveKeys a_ = make_curve_keys(), b_ = make_curve_keys();
  Record at_server_, at_a_, at_b_;
};

TEST_F(ControlTest, MessagesGoBothWaysInOrder) {
  auto server = serve();
  server->allow(a_.public_z85, "p-a");
  auto client = join(server->port(), a_, at_a_);
  std::vector<std::string> expected, expected_a;
  for (int i = 0; i < 200; ++i) {
    client->send(leaving(std::to_string(i)), 20000);
    server->send("p-a", drain(std::to_string(i)), 20000);
    expected.push_back("p-a:" + std::to_string(i));
    expected_a.push_back(std::to_string(i));
  }
  ASSERT_TRUE(at_server_.wait_for(200));
  ASSERT_TRUE(at_a_.wait_for(200));
  EXPECT_EQ(at_server_.seen(), expected);
  EXPECT_EQ(at_a_.seen(), expected_a);
}

TEST_F(ControlTest, HeartbeatsAreAnsweredAndTheBrokerCountsAsHeard) {
  auto server = serve();
  server->allow(a_.public_z85, "p-a");
  auto client = join(server->port(), a_, at_a_);
  client->send(leaving("knock"), 20000);
  ASSERT_TRUE(at_server_.wait_for(1));
  const auto start = std::chrono::steady_clock::now();
  uint64_t sequence = 0;
  // Each answer restarts the count, so it must be seen to fall below the time we have been trying.
  bool heard = false;
  while (!heard && std::chrono::steady_clock::now() - start < 10s) {
    client->send(heartbeat(++sequence), 0);
    at_server_.wait_for(1 + sequence, 1s);
    heard = std::chrono::milliseconds(client->ms_since_broker_heard()) + 20ms <
            std::chrono::steady_clock::now() - start;
  }
  EXPECT_TRUE(heard);
  EXPECT_THAT(at_server_.seen(), ::testing::Contains("p-a:heartbeat"));
}

TEST_F(ControlTest, UnlistedKeyIsRefusedThenGetsInOnceListed) {
  auto server = serve();
  auto client = join(server->port(), a_, at_a_);
  client->send(leaving("early"), 30000);
  EXPECT_FALSE(at_server_.wait_for(1, 500ms));
  server->allow(a_.public_z85, "p-a");
  ASSERT_TRUE(at_server_.wait_for(1));
  EXPECT_EQ(at_server_.seen().front(), "p-a:early");
}

TEST_F(ControlTest, WrongServerKeyNeverGetsThrough) {
  auto server = serve();
  server->allow(a_.public_z85, "p-a");
  ControlClientOptions options;
  options.host = "127.0.0.1";
  options.port = server->port();
  options.server_key_z85 = make_curve_keys().public_z85;
  options.keys = a_;
  auto client = ControlClient::start(options, [](const auto&) {});
  ASSERT_TRUE(client.ok());
  (*client)->send(leaving("lost"), 10000);
  EXPECT_FALSE(at_server_.wait_for(1, 800ms));
}

TEST_F(ControlTest, UndeliveredMessagesReachARestartedServerOnce) {
  auto server = serve();
  const uint16_t port = server->port();
  server->allow(a_.public_z85, "p-a");
  auto client = join(port, a_, at_a_);
  client->send(leaving("before"), 30000);
  ASSERT_TRUE(at_server_.wait_for(1));
  server.reset();
  for (int i = 0; i < 5; ++i) client->send(leaving("while down " + std::to_string(i)), 30000);
  server = serve(port);
  server->allow(a_.public_z85, "p-a");
  ASSERT_TRUE(at_server_.wait_for(6));
  // A message unacknowledged when the server died may be handled by both servers, as "before"
  // could; none of those sent while it was down may.
  server->send("p-a", drain("back"), 20000);
  ASSERT_TRUE(at_a_.wait_for(1));
  client->send(leaving("last"), 30000);
  std::vector<std::string> seen;
  for (size_t n = 7; seen.empty() || seen.back() != "p-a:last"; ++n) {
    ASSERT_TRUE(at_server_.wait_for(n));
    seen = at_server_.seen();
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(std::count(seen.begin(), seen.end(), "p-a:while down " + std::to_string(i)), 1);
  }
}

TEST_F(ControlTest, MessagesWaitForAPeerThatIsNotThereYet) {
  auto server = serve();
  server->allow(a_.public_z85, "p-a");
  server->send("p-a", drain("one"), 30000);
  server->send("p-a", drain("two"), 30000);
  auto client = join(server->port(), a_, at_a_);
  client->send(heartbeat(1), 0);  // may be dropped, there is no connection yet
  client->send(leaving("here"), 20000);
  ASSERT_TRUE(at_a_.wait_for(2));
  EXPECT_THAT(at_a_.seen(), ::testing::ElementsAre("one", "two"));
}

TEST_F(ControlTest, RevokedKeyIsNotHeardAnyMore) {
  auto server = serve();
  server->allow(a_.public_z85, "p-a");
  server->allow(b_.public_z85, "p-b");
  auto a = join(server->port(), a_, at_a_);
  auto b = join(server->port(), b_, at_b_);
  a->send(leaving("first"), 20000);
  ASSERT_TRUE(at_server_.wait_for(1));
  server->revoke(a_.public_z85);
  server->send("p-b", drain("revoked"), 20000);
  b->send(leaving("knock"), 20000);
  ASSERT_TRUE(at_b_.wait_for(1));  // the revocation was handled before this
  a->send(leaving("after"), 20000);
  EXPECT_FALSE(at_server_.wait_for(3, 700ms));
  EXPECT_THAT(at_server_.seen(), ::testing::ElementsAre("p-a:first", "p-b:knock"));
}

// A listed peer that speaks the protocol by hand and calls itself by another's routing id.
TEST_F(ControlTest, AnotherPeersIdCannotBeTaken) {
  auto server = serve();
  server->allow(a_.public_z85, "p-a");
  server->allow(b_.public_z85, "p-b");
  auto a = join(server->port(), a_, at_a_);
  a->send(leaving("i am a"), 20000);
  ASSERT_TRUE(at_server_.wait_for(1));

  ZmqContext context(16);
  ZmqSocket hijacker(context, ZMQ_DEALER);
  hijacker.set_common();
  hijacker.set(ZMQ_ROUTING_ID, std::string("p-a"));
  hijacker.set(ZMQ_CURVE_SERVERKEY, server_keys_.public_z85);
  hijacker.set(ZMQ_CURVE_PUBLICKEY, b_.public_z85);
  hijacker.set(ZMQ_CURVE_SECRETKEY, b_.secret_z85);
  ASSERT_TRUE(hijacker.connect(zmq_endpoint("127.0.0.1", server->port())).ok());
  proto::PeerMessage message = leaving("i am a too");
  message.set_id(1);
  message.set_session(99);
  ASSERT_EQ(hijacker.send({message.SerializeAsString()}), 0);
  ASSERT_TRUE(at_server_.wait_for(2));
  EXPECT_EQ(at_server_.seen().back(), "p-b:i am a too");

  server->send("p-a", drain("for a"), 20000);
  ASSERT_TRUE(at_a_.wait_for(1));
  while (hijacker.readable()) {  // its own acknowledgement and nothing else
    proto::BrokerMessage got;
    ASSERT_TRUE(got.ParseFromString(hijacker.receive(1).parts.at(0)));
    EXPECT_EQ(got.body_case(), proto::BrokerMessage::kAck);
  }
}

TEST_F(ControlTest, GarbageAndOversizeOfAListedPeerAreSurvived) {
  auto server = serve();
  auto a = admit_b_and_join_a(*server);
  ZmqContext context(16);
  ZmqSocket hostile(context, ZMQ_DEALER);
  hostile.set(ZMQ_LINGER, 0);
  hostile.set(ZMQ_CURVE_SERVERKEY, server_keys_.public_z85);
  hostile.set(ZMQ_CURVE_PUBLICKEY, b_.public_z85);
  hostile.set(ZMQ_CURVE_SECRETKEY, b_.secret_z85);
  ASSERT_TRUE(hostile.connect(zmq_endpoint("127.0.0.1", server->port())).ok());
  hostile.send({"\xff\xff\xff garbage"});
  hostile.send({""});
  hostile.send({"a", "b", "c", "d"});
  hostile.send({std::string(kMaxControlBytes * 2, 'x')});
  a->send(leaving("fine"), 20000);
  ASSERT_TRUE(at_server_.wait_for(2));
  EXPECT_EQ(at_server_.seen().back(), "p-a:fine");
}

// protobuf writes a line for each string that is no UTF-8.
TEST_F(ControlTest, AFloodOfInvalidStringsIsFewLinesOfLog) {
  log_init("control-test", LogLevel::kInfo, false);
  ::testing::internal::CaptureStderr();
  auto server = serve();
  auto a = admit_b_and_join_a(*server);
  ZmqContext context(16);
  ZmqSocket hostile(context, ZMQ_DEALER);
  hostile.set_common();
  hostile.set(ZMQ_CURVE_SERVERKEY, server_keys_.public_z85);
  hostile.set(ZMQ_CURVE_PUBLICKEY, b_.public_z85);
  hostile.set(ZMQ_CURVE_SECRETKEY, b_.secret_z85);
  ASSERT_TRUE(hostile.connect(zmq_endpoint("127.0.0.1", server->port())).ok());
  proto::PeerMessage last = leaving("a reason");
  last.set_id(1);
  last.set_session(7);
  std::string invalid = last.SerializeAsString();
  invalid[invalid.find("reason")] = '\xff';
  constexpr int kMessages = 3000;
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  for (int sent = 0; sent <= kMessages && std::chrono::steady_clock::now() < deadline;) {
    if (hostile.send({sent < kMessages ? invalid : last.SerializeAsString()}) == 0) ++sent;
  }
  const bool arrived = at_server_.wait_for(2);  // so all before it were parsed
  server.reset();
  const std::string written = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(arrived);
  EXPECT_EQ(at_server_.seen().back(), "p-b:a reason");
  EXPECT_LE(std::count(written.begin(), written.end(), '\n'), 20) << written.substr(0, 2000);
  EXPECT_THAT(written, ::testing::Not(::testing::HasSubstr("[libprotobuf")));
}

TEST_F(ControlTest, SilentConnectionsAreClosed) {
  ControlServerOptions options;
  options.keys = server_keys_;
  options.handshake_ms = 200;
  auto server = ControlServer::start(options, [](const auto&, const auto&) {}).value();
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval patience{15, 0};
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  char bytes[256];
  ssize_t n = 0;
  do n = ::read(fd, bytes, sizeof bytes);  // its greeting, then the end
  while (n > 0);
  EXPECT_EQ(n, 0);
  ::close(fd);
}

TEST_F(ControlTest, BadKeysAndTakenPortsAreErrors) {
  ControlServerOptions options;
  options.keys = {"x", "y"};
  EXPECT_FALSE(ControlServer::start(options, [](const auto&, const auto&) {}).ok());
  auto server = serve();
  options.keys = server_keys_;
  options.port = server->port();
  const auto second = ControlServer::start(options, [](const auto&, const auto&) {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  ControlClientOptions client;
  client.host = "127.0.0.1";
  client.port = 1;
  client.server_key_z85 = "short";
  client.keys = a_;
  EXPECT_FALSE(ControlClient::start(client, [](const auto&) {}).ok());
}

}  // namespace
}  // namespace weft::net
