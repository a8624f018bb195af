// Who may link to whom: certificates, job, epoch, stage and peer against the plan.
#include <gtest/gtest.h>

#include <boost/asio.hpp>
#include <chrono>

#include "tests/unit/net/sim_messages.h"
#include "tests/unit/net/tls_cluster.h"

namespace weft::net {
namespace {

using testing::connect_all;
using testing::make_key;
using testing::make_message;
using testing::neighbour;
using testing::receive;
using testing::tls_options;

const std::vector<EdgeLink> kEdge = {{0, 0, 1, 2, 2}};

std::unique_ptr<TlsEndpoint> listen(const TlsEndpointOptions& options) {
  auto endpoint = TlsEndpoint::listen(options);
  EXPECT_TRUE(endpoint.ok()) << endpoint.error().text();
  return std::move(endpoint).value();
}

// The dialler gets an answer; the one that waits for a caller gives up soon, but still answers.
int32_t patience_ms(size_t i) {
  return i == 0 ? 5000 : 150;
}

// Stage 0 dials stage 1; returns what both said.
std::vector<Status> link(TlsEndpoint& a, TlsEndpoint& b) {
  return connect_all(
      {&a, &b},
      [&](size_t i) {
        return std::vector<Neighbour>{i == 0 ? neighbour(1, b.port()) : neighbour(0, a.port())};
      },
      patience_ms);
}

using Change = std::function<void(TlsEndpointOptions&)>;

// The dialling stage 0 with another certificate must be turned away with a reason.
void expect_dialler_refused(const testing::Paths& paths, const std::string& reason) {
  auto options = tls_options(0, kEdge);
  options.certificate_path = paths.certificate;
  options.key_path = paths.key;
  auto a = listen(options);
  auto b = listen(tls_options(1, kEdge));
  const auto results = link(*a, *b);
  ASSERT_FALSE(results[0].ok());
  EXPECT_EQ(results[0].error().code, Code::kDenied) << results[0].error().text();
  EXPECT_NE(results[0].error().message.find(reason), std::string::npos)
      << results[0].error().text();
  ASSERT_FALSE(results[1].ok()) << "a refused dialler is not a link";
  EXPECT_EQ(results[1].error().code, Code::kUnavailable);
}

TEST(TlsLinks, WrongJobIsRefused) {
  expect_dialler_refused(testing::shared_ca().issue("peer-0", "job-b", 1, 0), "job-a");
}
TEST(TlsLinks, OldEpochIsRefused) {
  expect_dialler_refused(testing::shared_ca().issue("peer-0", "job-a", 0, 0), "epoch 1");
}
TEST(TlsLinks, StageWithoutAnEdgeIsRefused) {
  expect_dialler_refused(testing::shared_ca().issue("peer-0", "job-a", 1, 5), "no edge");
}
TEST(TlsLinks, AnotherPeerIsRefused) {
  expect_dialler_refused(testing::shared_ca().issue("peer-9", "job-a", 1, 0), "another peer");
}
TEST(TlsLinks, DaemonCertificateIsRefused) {
  expect_dialler_refused(testing::shared_ca().issue("peer-0", "job-a", 1, 0, "peer"), "worker");
}

// Each field of an edge, and an edge too many: values would be taken for one another.
TEST(TlsLinks, AModelThatIsCutOtherwiseIsRefused) {
  const EdgeLink same{0, 0, 1, 2, 2, 1024, 1024};
  std::vector<std::vector<EdgeLink>> others = {{}, {same, same}};
  others.back().back().edge = 1;
  const std::vector<std::function<void(EdgeLink&)>> changes = {
      [](EdgeLink& e) { e.edge = 1; },
      [](EdgeLink& e) { std::swap(e.from, e.to); },
      [](EdgeLink& e) { e.activation_credits = 3; },
      [](EdgeLink& e) { e.gradient_credits = 3; },
      [](EdgeLink& e) { e.activation_bytes = 4096; },
      [](EdgeLink& e) { e.gradient_bytes = 0; },
      [](EdgeLink& e) { e.value = 7; }};
  for (const auto& change : changes) change(others.emplace_back(1, same).front());
  for (const auto& other : others) {
    auto options = tls_options(1, other);
    options.control_neighbours = {0};
    auto a = listen(tls_options(0, {same}));
    auto b = listen(options);
    const auto results = link(*a, *b);
    ASSERT_FALSE(results[0].ok());
    EXPECT_EQ(results[0].error().code, Code::kDenied) << results[0].error().text();
    EXPECT_NE(results[0].error().message.find("different versions"), std::string::npos)
        << results[0].error().text();
    EXPECT_FALSE(results[1].ok());
  }
}

TEST(TlsLinks, TheOrderInWhichEdgesAreGivenIsNoDifference) {
  const std::vector<EdgeLink> edges = {{0, 0, 1, 2, 2}, {3, 0, 1, 2, 1}, {1, 1, 0, 2, 2}};
  auto a = listen(tls_options(0, edges));
  auto b = listen(tls_options(1, {edges[2], edges[0], edges[1]}));
  for (const Status& status : link(*a, *b)) EXPECT_TRUE(status.ok()) << status.error().text();
}

TEST(TlsLinks, WrongStageAnswersTheDialler) {
  // Stage 2's address was given out as stage 1's.
  const std::vector<EdgeLink> edges = {{0, 0, 1, 2, 2}, {1, 0, 2, 2, 2}};
  auto a = listen(tls_options(0, edges));
  auto c = listen(tls_options(2, edges));
  const auto results = connect_all(
      {a.get(), c.get()},
      [&](size_t i) {
        return i == 0 ? std::vector<Neighbour>{neighbour(1, c->port()), neighbour(2, c->port())}
                      : std::vector<Neighbour>{neighbour(0, a->port())};
      },
      patience_ms);
  ASSERT_FALSE(results[0].ok());
  EXPECT_EQ(results[0].error().code, Code::kDenied) << results[0].error().text();
  EXPECT_NE(results[0].error().message.find("stage 1 was dialled"), std::string::npos)
      << results[0].error().text();
}

TEST(TlsLinks, ForeignCaIsRefused) {
  const testing::TestCa foreign;
  const auto paths = foreign.issue("peer-0", "job-a", 1, 0);
  auto options = tls_options(0, kEdge);
  options.certificate_path = paths.certificate;
  options.key_path = paths.key;  // it still trusts our CA, so only stage 1 can object
  auto a = listen(options);
  auto b = listen(tls_options(1, kEdge));
  auto results = link(*a, *b);
  ASSERT_FALSE(results[0].ok());
  EXPECT_EQ(results[0].error().code, Code::kDenied) << results[0].error().text();
  EXPECT_FALSE(results[1].ok());
}

TEST(TlsLinks, ForeignServerIsRefused) {
  const testing::TestCa foreign;
  const auto paths = foreign.issue("peer-1", "job-a", 1, 1);
  auto options = tls_options(1, kEdge);
  options.certificate_path = paths.certificate;
  options.key_path = paths.key;
  auto a = listen(tls_options(0, kEdge));
  auto b = listen(options);
  const auto results = link(*a, *b);
  ASSERT_FALSE(results[0].ok());
  EXPECT_EQ(results[0].error().code, Code::kDenied) << results[0].error().text();
}

TEST(TlsLinks, EitherEndMayDial) {
  // Stage 0 cannot be dialled, stage 1 cannot either way round: both orders come up.
  for (const bool low_is_dialable : {true, false}) {
    auto a = listen(tls_options(0, kEdge));
    auto b = listen(tls_options(1, kEdge));
    const uint16_t port_a = low_is_dialable ? a->port() : 0;
    const uint16_t port_b = low_is_dialable ? 0 : b->port();
    const std::vector<Neighbour> all = {neighbour(0, port_a), neighbour(1, port_b)};
    const auto results = connect_all(
        {a.get(), b.get()}, [&](size_t) { return all; }, [](size_t) { return 4000; });
    EXPECT_TRUE(results[0].ok());
    EXPECT_TRUE(results[1].ok());
    const auto key = make_key(MessageKind::kActivation, 0, 0, 0, 0);
    ASSERT_TRUE(a->send(1, make_message(key, 9)).ok());
    EXPECT_TRUE(receive(*b, key, 9));
  }
}

TEST(TlsLinks, NobodyCanBeDialled) {
  auto a = listen(tls_options(0, kEdge));
  const auto status = a->connect({neighbour(0, 0), neighbour(1, 0)}, 500);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kUnavailable);
}

TEST(TlsLinks, MissingNeighbourIsNamedInTime) {
  auto a = listen(tls_options(0, kEdge));
  uint16_t closed_port = 0;
  {
    boost::asio::io_context io;
    boost::asio::ip::tcp::acceptor once(io, {boost::asio::ip::address_v4::loopback(), 0});
    closed_port = once.local_endpoint().port();
  }
  const auto status = a->connect({neighbour(1, closed_port)}, 300);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kUnavailable);
  EXPECT_NE(status.error().message.find("peer-1"), std::string::npos) << status.error().text();
  EXPECT_EQ(a->wait(1000).error().code, Code::kUnavailable) << "it stays failed";
}

TEST(TlsLinks, BadFilesAreNamed) {
  auto options = tls_options(0, kEdge);
  options.key_path = tls_options(1, kEdge).key_path;
  const auto mismatch = TlsEndpoint::listen(options);
  ASSERT_FALSE(mismatch.ok());
  options.ca_path = "/nonexistent/ca.pem";
  const auto missing = TlsEndpoint::listen(options);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("/nonexistent/ca.pem"), std::string::npos);
}

class RawClient {
 public:
  explicit RawClient(uint16_t port) : socket_(io_) {
    socket_.connect({boost::asio::ip::address_v4::loopback(), port});
  }
  void write(size_t bytes) {
    boost::system::error_code ignored;
    const std::vector<char> garbage(bytes, 'x');
    boost::asio::write(socket_, boost::asio::buffer(garbage), ignored);
  }
  // Until the other side closes.
  void drain() {
    boost::system::error_code ec;
    std::vector<char> bytes(4096);
    while (!ec) socket_.read_some(boost::asio::buffer(bytes), ec);
  }

 private:
  boost::asio::io_context io_;
  boost::asio::ip::tcp::socket socket_;
};

// A running link is not disturbed, and every stranger is closed within the handshake timeout.
TEST(TlsLinks, GarbageAndSilentClientsAreClosed) {
  testing::TlsCluster cluster(
      2, kEdge, {}, [](TlsEndpointOptions& options) { options.handshake_timeout_ms = 300; });
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 100; ++i) {
    clients.push_back(std::make_unique<RawClient>(cluster.at(1).port()));
    if (i % 2) clients.back()->write(2000);
  }
  const auto key = make_key(MessageKind::kActivation, 0, 0, 0, 0);
  ASSERT_TRUE(cluster.at(0).send(1, make_message(key, 100000)).ok());
  EXPECT_TRUE(receive(cluster.at(1), key, 100000));
  for (auto& client : clients) client->drain();
}

}  // namespace
}  // namespace weft::net
