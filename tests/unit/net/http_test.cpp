// HTTPS server and client over loopback: trust, limits, long polls, files.
#include "net/http/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "http_fixture.h"

namespace weft::net {
namespace {

using namespace std::chrono_literals;
namespace asio = boost::asio;

void echo(const HttpRequest& request, const HttpReply& reply) {
  HttpResponse response;
  response.body = request.method + " " + request.path;
  for (const auto& [name, value] : request.query) response.body += " " + name + "=" + value;
  if (!request.body.empty()) response.body += " [" + std::to_string(request.body.size()) + "]";
  if (!request.client_certificate_pem.empty()) {
    response.body += " by " + read_certificate(request.client_certificate_pem)->subject;
  }
  if (const auto token = request.headers.find("authorization"); token != request.headers.end()) {
    response.body += " with " + token->second;
  }
  reply(std::move(response));
}

class HttpTest : public ::testing::Test {
 protected:
  void serve(HttpHandler handler = echo) {
    auto started = HttpServer::start(options_, std::move(handler));
    ASSERT_TRUE(started.ok()) << started.error().message;
    server_ = std::move(started).value();
  }
  HttpClientOptions client_options() const { return cluster_.client_options(server_->port()); }

  Cluster cluster_{"http"};
  HttpServerOptions options_ = cluster_.server_options();
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTest, RequestsAndAnswersOverOneConnection) {
  serve();
  HttpClientOptions options = client_options();
  options.bearer_token = "secret";
  HttpClient client(options);
  EXPECT_EQ(client.request("GET", "/a%20b/c?x=1%262&y=+z")->body,
            "GET /a b/c x=1&2 y= z with Bearer secret");
  EXPECT_EQ(client.request("POST", "/p", std::string(1000, 'x'))->body,
            "POST /p [1000] with Bearer secret");
  const auto head = client.request("HEAD", "/h");
  ASSERT_TRUE(head.ok());
  EXPECT_EQ(head->body, "");
  EXPECT_EQ(head->headers.at("content-length"), "26");
  EXPECT_EQ(client.request("DELETE", "/d")->body, "DELETE /d with Bearer secret");
}

TEST_F(HttpTest, MalformedTargetsAreRefused) {
  serve();
  HttpClient client(client_options());
  for (const char* target : {"/%", "/%zz", "/a%00b", "/a?x=%1", "/%0a"}) {
    const auto response = client.request("GET", target);
    ASSERT_TRUE(response.ok()) << target;
    EXPECT_EQ(response->status, 400) << target;
  }
  EXPECT_FALSE(client.request("GET", "no-slash").ok());
  EXPECT_FALSE(client.request("GET", "/a b").ok());
}

TEST_F(HttpTest, PinAdmitsTheBrokerOfThisClusterOnly) {
  serve();
  HttpClientOptions pinned = client_options();
  pinned.ca_pem.clear();
  pinned.ca_fingerprint = cluster_.authority().fingerprint();
  EXPECT_TRUE(HttpClient(pinned).request("GET", "/").ok());

  pinned.ca_fingerprint = Cluster("other").authority().fingerprint();
  const auto denied = HttpClient(pinned).request("GET", "/");
  ASSERT_FALSE(denied.ok());
  EXPECT_EQ(denied.error().code, Code::kDenied);
}

TEST_F(HttpTest, PinDoesNotAdmitAPeerOrAChainThatOnlyShowsTheCa) {
  options_ = cluster_.server_options("p-1", "peer");
  serve();
  HttpClientOptions pinned = client_options();
  pinned.ca_pem.clear();
  pinned.ca_fingerprint = cluster_.authority().fingerprint();
  const auto peer = HttpClient(pinned).request("GET", "/");
  ASSERT_FALSE(peer.ok());
  EXPECT_EQ(peer.error().code, Code::kDenied);

  // A stranger's certificate sent together with our genuine CA certificate.
  const Cluster stranger("stranger");
  options_ = stranger.server_options();
  options_.ca_pem = cluster_.authority().ca_pem();
  serve();
  pinned.port = server_->port();
  const auto forged = HttpClient(pinned).request("GET", "/");
  ASSERT_FALSE(forged.ok());
  EXPECT_EQ(forged.error().code, Code::kDenied);
}

TEST_F(HttpTest, ServerMustBeWhomWeExpect) {
  options_ = cluster_.server_options("p-1", "peer");
  serve();
  HttpClientOptions options = client_options();
  options.expect_subject = "p-1";
  EXPECT_TRUE(HttpClient(options).request("GET", "/").ok());
  for (const char* wanted : {"p-2", "broker"}) {
    options.expect_subject = wanted;
    const auto response = HttpClient(options).request("GET", "/");
    ASSERT_FALSE(response.ok());
    EXPECT_EQ(response.error().code, Code::kDenied);
  }
  options.ca_pem = Cluster("another").authority().ca_pem();
  options.expect_subject.clear();
  const auto foreign = HttpClient(options).request("GET", "/");
  ASSERT_FALSE(foreign.ok());
  EXPECT_EQ(foreign.error().code, Code::kDenied);
}

TEST_F(HttpTest, ClientCertificateIsShownToHandlersAndForeignOnesAreRefused) {
  serve();
  HttpClientOptions options = client_options();
  const Identity ours = cluster_.issue("p-7", "peer");
  options.certificate_pem = ours.certificate_pem;
  options.key_pem = ours.key_pem;
  EXPECT_EQ(HttpClient(options).request("GET", "/")->body, "GET / by p-7");

  const Identity foreign = Cluster("foreign").issue("p-7", "peer");
  options.certificate_pem = foreign.certificate_pem;
  options.key_pem = foreign.key_pem;
  const auto refused = HttpClient(options).request("GET", "/");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kDenied) << refused.error().message;
}

TEST_F(HttpTest, RequiredClientCertificateMustCome) {
  options_.require_client_certificate = true;
  serve();
  const auto refused = HttpClient(client_options()).request("GET", "/");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kDenied) << refused.error().message;
}

TEST_F(HttpTest, TooLargeABodyAnswers413AndTheServerLivesOn) {
  options_.max_body_bytes = 1000;
  serve();
  HttpClient client(client_options());
  const auto large = client.request("PUT", "/", std::string(5 << 20, 'x'));
  ASSERT_TRUE(large.ok()) << large.error().message;
  EXPECT_EQ(large->status, 413);
  EXPECT_EQ(error_from_response(*large).code, Code::kTooLarge);
  EXPECT_EQ(client.request("GET", "/")->status, 200);
}

TEST_F(HttpTest, LongPollIsAnsweredFromAnotherThread) {
  std::thread answerer;
  serve([&](HttpRequest, HttpReply reply) {
    answerer = std::thread([reply] {
      HttpResponse response;
      response.body = "late";
      reply(response);
      reply(response);  // a second answer is dropped
    });
  });
  HttpClient client(client_options());
  EXPECT_EQ(client.request("GET", "/")->body, "late");
  answerer.join();
}

TEST_F(HttpTest, RepliesMayOutliveTheServerAndDroppedOnesAnswer500) {
  HttpReply kept;
  std::promise<void> asked;
  serve([&](const HttpRequest& request, HttpReply reply) {
    if (request.path != "/keep") return;
    kept = std::move(reply);
    asked.set_value();
  });
  EXPECT_EQ(HttpClient(client_options()).request("GET", "/drop")->status, 500);
  auto waiting = std::async(std::launch::async, [options = client_options()] {
    return HttpClient(options).request("GET", "/keep").ok();
  });
  asked.get_future().wait();
  server_.reset();
  EXPECT_FALSE(waiting.get());
  kept(HttpResponse());
}

TEST_F(HttpTest, HandlerThatThrowsAnswers500) {
  serve([](const HttpRequest&, const HttpReply&) { throw std::runtime_error("oops"); });
  const auto response = HttpClient(client_options()).request("GET", "/");
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->status, 500);
  EXPECT_THAT(response->body, ::testing::Not(::testing::HasSubstr("oops")));
}

TEST_F(HttpTest, SilentClientsAreDropped) {
  options_.idle_timeout_ms = 200;
  serve();
  asio::io_context io;
  asio::ssl::context tls(asio::ssl::context::tls_client);
  asio::ssl::stream<asio::ip::tcp::socket> stream(io, tls);
  stream.next_layer().connect({asio::ip::make_address("127.0.0.1"), server_->port()});
  stream.handshake(asio::ssl::stream_base::client);
  boost::system::error_code ec;
  char byte;
  const auto ended = std::async(std::launch::async, [&] {
                       stream.read_some(asio::buffer(&byte, 1), ec);
                     }).wait_for(10s);
  EXPECT_EQ(ended, std::future_status::ready);
  EXPECT_TRUE(ec);
}

TEST_F(HttpTest, ConnectionsAreCapped) {
  options_.max_connections = 1;
  serve();
  HttpClient first(client_options()), second(client_options());
  ASSERT_TRUE(first.request("GET", "/").ok());
  EXPECT_FALSE(second.request("GET", "/").ok());
  ASSERT_TRUE(first.request("GET", "/").ok());
}

TEST_F(HttpTest, ClientReconnectsWhenTheServerClosedItsConnection) {
  serve();
  HttpClientOptions options = client_options();
  HttpClient client(options);
  ASSERT_TRUE(client.request("POST", "/").ok());
  options_.port = server_->port();
  server_.reset();
  serve();
  EXPECT_TRUE(client.request("POST", "/").ok());
}

TEST_F(HttpTest, TransportErrorsHaveTheirCodes) {
  serve([](const HttpRequest&, const HttpReply& reply) {
    static HttpReply never = reply;  // no answer while the client waits
  });
  HttpClientOptions options = client_options();
  options.timeout_ms = 200;
  EXPECT_EQ(HttpClient(options).request("GET", "/").error().code, Code::kTimeout);
  options.port = server_->port();
  server_.reset();
  EXPECT_EQ(HttpClient(options).request("GET", "/").error().code, Code::kUnavailable);
  options.ca_pem.clear();
  EXPECT_EQ(HttpClient(options).request("GET", "/").error().code, Code::kInvalid);
}

TEST_F(HttpTest, ServesRangesOfFiles) {
  const os::Path path = os::Path(::testing::TempDir()) / "weft_http_file";
  std::string content(300000, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = char('a' + i % 23);
  ASSERT_TRUE(os::write_file_atomic(path, std::string_view(content)).ok());
  serve([&](const HttpRequest& request, const HttpReply& reply) {
    HttpResponse response;
    response.file = request.path == "/absent" ? os::Path("/nonexistent") : path;
    response.file_offset = 1000;
    response.file_length = 250000;
    reply(std::move(response));
  });
  HttpClient client(client_options());
  EXPECT_EQ(client.request("GET", "/")->body, content.substr(1000, 250000));
  EXPECT_EQ(client.request("HEAD", "/")->headers.at("content-length"), "250000");
  EXPECT_EQ(client.request("GET", "/absent")->status, 500);
}

TEST_F(HttpTest, StrangersMaySendSmallBodiesOnly) {
  options_.max_body_bytes = 1 << 20;
  options_.admit = [](const HttpRequest& request) {
    EXPECT_TRUE(request.body.empty());
    const auto token = request.headers.find("authorization");
    return token != request.headers.end() && token->second == "Bearer secret";
  };
  serve();
  const std::string small(64 << 10, 'x'), large((64 << 10) + 1, 'x');
  HttpClientOptions options = client_options();
  HttpClient stranger(options);
  EXPECT_EQ(stranger.request("POST", "/join", small)->status, 200);
  const auto refused = stranger.request("POST", "/jobs", large);
  ASSERT_TRUE(refused.ok()) << refused.error().message;
  EXPECT_EQ(error_from_response(*refused).code, Code::kDenied);
  options.bearer_token = "secret";
  HttpClient user(options);
  EXPECT_EQ(user.request("POST", "/jobs", large)->status, 200);
  const auto huge = user.request("POST", "/jobs", std::string((1 << 20) + 1, 'x'));
  ASSERT_TRUE(huge.ok()) << huge.error().message;
  EXPECT_EQ(error_from_response(*huge).code, Code::kTooLarge);
}

TEST(ProblemTest, ErrorsSurviveTheRoundTrip) {
  for (int i = 0; i <= int(Code::kInternal); ++i) {
    Error error = make_error(Code(i), "it \"broke\" \xff", "do this");
    error.node = "conv1";
    error.op = "aten::conv2d";
    const HttpResponse response = problem_response(error);
    EXPECT_GE(response.status, 400);
    const Error back = error_from_response(response);
    EXPECT_EQ(back.code, error.code);
    EXPECT_EQ(back.next, "do this");
    EXPECT_EQ(back.node, "conv1");
    EXPECT_EQ(back.op, "aten::conv2d");
  }
  HttpResponse plain;
  plain.status = 404;
  plain.body = "<html>";
  EXPECT_EQ(error_from_response(plain).code, Code::kNotFound);
}

}  // namespace
}  // namespace weft::net
