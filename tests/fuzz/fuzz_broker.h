// A broker without sockets for fuzz targets: the real core and API over a store in memory, one job
// submitted, one peer there. Made anew for each input; but the store stays, what an input wrote is
// rolled back (its tables and statements are half the work of making a broker).
#pragma once

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "broker/api/api.h"
#include "broker/core.h"
#include "net/codec/graph_codec.h"
#include "net/identity/authority.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/broker/graphs.h"

namespace weft::fuzz {

class SilentLink final : public broker::PeerLink {
 public:
  void send(const std::string&, proto::BrokerMessage message, int32_t) override {
    (void)message.ByteSizeLong();
  }
  void allow(const std::string&, const std::string&) override {}
  void revoke(const std::string&) override {}
};

// Files and keys, the same for every input.
struct BrokerFiles {
  TemporaryFolder temporary{"weft-fuzz-broker"};
  const os::Path& folder = temporary.path();
  net::BlobStore blobs = *net::BlobStore::open(folder / "blobs");
  net::Authority authority = *net::Authority::open(folder);
  opdag::Graph graph = broker::testing::chain_graph(2, 4, 8);
  std::map<std::string, std::string> contents;  // of every blob, by name
  std::string encoded = net::encode_graph(graph);
  std::string graph_blob = put(encoded);

  std::string put(const std::string& content) {
    const std::string name = *blobs.put(bytes(content));
    contents[name] = content;
    return name;
  }
  // A job's blobs go with it.
  void restore() {
    for (const auto& [name, content] : contents) {
      if (!blobs.has(name)) WEFT_CHECK(blobs.put(bytes(content)).ok());
    }
  }

  static std::span<const std::byte> bytes(std::string_view text) {
    return std::as_bytes(std::span(text));
  }
  static BrokerFiles& get() {
    log_init("fuzz", LogLevel::kError, false);
    static BrokerFiles files;
    return files;
  }
};

// 64 rows of 8 numbers.
inline std::string array_bytes() {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (64, 8), }";
  header.resize(117, ' ');
  header += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + std::string("\x76\x00", 2) + header +
         std::string(64 * 8 * 4, '\0');
}

inline nlohmann::json make_submission_json() {
  BrokerFiles& files = BrokerFiles::get();
  const auto put = [&files](const std::string& content) -> nlohmann::json {
    return {{"sha256", files.put(content)}, {"bytes", content.size()}};
  };
  const nlohmann::json blob = {{"sha256", files.graph_blob}, {"bytes", files.encoded.size()}};
  nlohmann::json weights = nlohmann::json::object();
  for (const opdag::Leaf& leaf : files.graph.leaves) {
    if (leaf.kind == opdag::LeafKind::kParameter) {
      weights[leaf.weight.path] = put(std::string(leaf.weight.bytes, 'w'));
    }
  }
  return {{"spec", job::spec_to_json(broker::testing::chain_spec(16))},
          {"graph", blob},
          {"eval_graph", blob},
          {"weights", weights},
          {"init", nullptr},
          {"data", {{"train/features", put(array_bytes())}, {"train/targets", put(array_bytes())}}},
          {"token_dtype", ""}};
}

inline const nlohmann::json& submission_json() {
  static const nlohmann::json made = make_submission_json();
  return made;
}

class Broker {
 public:
  static constexpr const char* kToken = "admin-token";
  static constexpr const char* kJob = "j-1";
  static constexpr const char* kPeer = "p-1";

  explicit Broker(broker::Store& store) : core_(store, BrokerFiles::get().blobs, clock_, {}) {
    core_.set_link(&link_);
    WEFT_CHECK(core_.load().ok());
    api_.random_hex = [this](size_t bytes) { return fmt::format("{:0{}x}", ++random_, 2 * bytes); };
    WEFT_CHECK(core_.admit(broker::PeerJoined{kPeer, "peer", std::string(40, 'c'), "key"}).ok());
    proto::PeerMessage hello;
    hello.set_session(1);
    hello.mutable_hello()->mutable_capabilities()->set_cores(2);
    hello.mutable_hello()->mutable_capabilities()->set_memory_bytes(int64_t{1} << 30);
    core_.on_message(kPeer, hello);
    BrokerFiles& files = BrokerFiles::get();
    broker::Submission made;
    made.spec = broker::testing::chain_spec(16);
    made.graph = made.eval_graph = {files.graph_blob, files.encoded.size(), ""};
    WEFT_CHECK(core_.submit(kJob, submission_json(), made, {files.graph, files.graph}).ok());
    for (int i = 0; i < 5; ++i) later();  // it is deployed
  }
  ~Broker() { api_.waiters().drop_all(); }

  broker::Core& core() { return core_; }

  net::HttpResponse call(const std::string& method, const std::string& path,
                         const std::map<std::string, std::string>& query, std::string body) {
    net::HttpRequest request;
    request.method = method;
    request.path = path;
    request.query = query;
    request.headers["authorization"] = std::string("Bearer ") + kToken;
    request.body = std::move(body);
    net::HttpResponse answer;
    answer.status = 0;
    int answers = 0;
    api_.handle(request, [&](net::HttpResponse response) {
      answer = std::move(response);
      ++answers;
    });
    if (answers == 0) {  // waits for news
      clock_.advance_ms(3600 * 1000);
      api_.waiters().tick(core_.now_ms());
    }
    WEFT_CHECK(answers == 1);
    return answer;
  }

  void later() {
    clock_.advance_ms(1000);
    core_.tick();
  }

 private:
  VirtualClock clock_;
  SilentLink link_;
  broker::Core core_;
  broker::Api api_{core_, BrokerFiles::get().authority,
                   broker::ApiIdentity{kToken, std::string(40, 'k'), "", "host", 1, 2}};
  uint64_t random_ = 0;
};

template <typename Body>
void with_broker(Body body) {
  static const std::unique_ptr<broker::Store> store = *broker::open_sqlite_store(":memory:");
  const Status ended = store->batch([&]() -> Status {
    BrokerFiles::get().restore();
    Broker broker(*store);
    body(broker);
    return make_error(Code::kCancelled, "rolled back");
  });
  WEFT_CHECK(!ended.ok() && ended.error().code == Code::kCancelled);  // no exception came out
}

}  // namespace weft::fuzz
