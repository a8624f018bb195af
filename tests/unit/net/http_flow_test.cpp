// Bodies that are not kept, in both directions, and requests that are given up.
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <future>

#include "net/gate/link_gate.h"
#include "tests/unit/net/http_fixture.h"

namespace weft::net {
namespace {

// Counts what comes; wants only so much.
class Counting final : public HttpUpload {
 public:
  Counting(std::atomic<uint64_t>& total, uint64_t most) : total_(total), most_(most) {}
  bool take(size_t bytes) override { return (total_ += bytes) < most_; }
  HttpResponse end() override {
    HttpResponse response;
    response.body = std::to_string(total_);
    return response;
  }

 private:
  std::atomic<uint64_t>& total_;
  uint64_t most_;
};

HttpSource filler(uint64_t bytes) {
  return [left = bytes](std::span<char> room) mutable {
    const auto now = static_cast<size_t>(std::min<uint64_t>(left, room.size()));
    left -= now;
    return now;
  };
}

class HttpFlowTest : public ::testing::Test {
 protected:
  void serve() {
    options_.max_body_bytes = 100;
    options_.upload = [this](const HttpRequest& request) -> std::unique_ptr<HttpUpload> {
      if (request.path != "/count") return nullptr;
      return std::make_unique<Counting>(counted_, most_);
    };
    server_ = HttpServer::start(options_, [this](HttpRequest request, const HttpReply& reply) {
                if (request.path == "/never") {
                  kept_ = reply;
                  waits_.set_value();
                  return;
                }
                HttpResponse response;
                response.status = request.path == "/refused" ? 503 : 200;
                if (request.path == "/flow")
                  response.source = filler(std::stoull(request.query["n"]));
                if (request.path != "/flow") response.body = "plain";
                reply(std::move(response));
              }).value();
  }

  Cluster cluster_{"http_flow"};
  HttpServerOptions options_ = cluster_.server_options();
  std::atomic<uint64_t> counted_ = 0;
  uint64_t most_ = UINT64_MAX;
  HttpReply kept_;
  std::promise<void> waits_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpFlowTest, CarriesBodiesOfAnyLengthOnOneConnection) {
  serve();
  HttpClient client(cluster_.client_options(server_->port()));
  for (const uint64_t bytes : {0ull, 1ull, 16376ull, 16377ull, 5'000'000ull}) {
    counted_ = 0;
    const auto sent = client.stream("PUT", "/count", {filler(bytes), {}});
    ASSERT_TRUE(sent.ok()) << sent.error().text();
    EXPECT_EQ(sent->body, std::to_string(bytes));
    uint64_t came = 0;
    const auto got = client.stream("GET", "/flow?n=" + std::to_string(bytes), {{}, [&](size_t n) {
                                                                                 came += n;
                                                                                 return true;
                                                                               }});
    ASSERT_TRUE(got.ok()) << got.error().text();
    EXPECT_EQ(came, bytes);
    EXPECT_TRUE(got->body.empty());
  }
  EXPECT_EQ(client.request("GET", "/other")->body, "plain");
}

TEST_F(HttpFlowTest, AServerThatWantsNoMoreIsHeardAtOnce) {
  most_ = 100'000;
  serve();
  HttpClient client(cluster_.client_options(server_->port()));
  std::atomic<uint64_t> sent = 0;
  const auto endless = [&](std::span<char> room) {
    sent += room.size();
    return room.size();
  };
  const auto answer = client.stream("PUT", "/count", {endless, {}});
  ASSERT_TRUE(answer.ok()) << answer.error().text();
  EXPECT_GE(std::stoull(answer->body), most_);
  EXPECT_GE(sent, most_);
  // On a fresh connection the client goes on.
  EXPECT_EQ(client.request("GET", "/other")->body, "plain");
}

TEST_F(HttpFlowTest, WhatIsNotWantedOfAnAnswerIsNotRead) {
  serve();
  HttpClient client(cluster_.client_options(server_->port()));
  uint64_t came = 0;
  const auto got = client.stream("GET", "/flow?n=1000000000000", {{}, [&](size_t n) {
                                                                    came += n;
                                                                    return came < 50'000;
                                                                  }});
  ASSERT_TRUE(got.ok()) << got.error().text();
  EXPECT_EQ(client.request("GET", "/other")->body, "plain");
}

TEST_F(HttpFlowTest, ARefusalIsNoFlow) {
  serve();
  HttpClient client(cluster_.client_options(server_->port()));
  const auto got = client.stream("GET", "/refused", {{}, [](size_t) -> bool {
                                                       ADD_FAILURE()
                                                           << "of a refusal nothing flows";
                                                       return true;
                                                     }});
  ASSERT_TRUE(got.ok()) << got.error().text();
  EXPECT_EQ(got->status, 503);
  EXPECT_EQ(got->body, "plain");
}

TEST_F(HttpFlowTest, AMalformedChunkIsAnsweredWithAnError) {
  serve();
  namespace ssl = boost::asio::ssl;
  boost::asio::io_context io;
  ssl::context context(ssl::context::tls_client);
  ssl::stream<boost::asio::ip::tcp::socket> stream(io, context);
  stream.next_layer().connect({boost::asio::ip::address_v4::loopback(), server_->port()});
  stream.handshake(ssl::stream_base::client);
  boost::asio::write(
      stream, boost::asio::buffer(
                  std::string("PUT /count HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")));
  std::string text;
  boost::system::error_code ec;
  boost::asio::read(stream, boost::asio::dynamic_buffer(text), ec);
  EXPECT_EQ(text.substr(0, 12), "HTTP/1.1 400") << text;
}

TEST_F(HttpFlowTest, ARequestUnderWayIsGivenUp) {
  serve();
  HttpClient client(cluster_.client_options(server_->port()));
  auto answer = std::async(std::launch::async, [&] { return client.request("GET", "/never"); });
  waits_.get_future().wait();
  client.interrupt();
  const auto given_up = answer.get();
  ASSERT_FALSE(given_up.ok());
  EXPECT_EQ(given_up.error().code, Code::kCancelled);
  EXPECT_EQ(client.request("GET", "/other").error().code, Code::kCancelled);
}

TEST_F(HttpFlowTest, AFlowOverADeadLinkIsGivenUp) {
  serve();
  LinkGateOptions gate_options;
  gate_options.target_port = server_->port();
  auto gate = LinkGate::start(gate_options).value();
  HttpClient client(cluster_.client_options(gate->port()));
  std::promise<void> flows;
  uint64_t came = 0;
  auto answer = std::async(std::launch::async, [&] {
    return client.stream("GET", "/flow?n=1000000000000", {{}, [&](size_t n) {
                                                            if (came == 0) {
                                                              gate->stall(true);
                                                              flows.set_value();
                                                            }
                                                            came += n;
                                                            return true;
                                                          }});
  });
  flows.get_future().wait();
  client.interrupt();
  EXPECT_EQ(answer.get().error().code, Code::kCancelled);
}

}  // namespace
}  // namespace weft::net
