// Control messages. The first byte chooses the reader: what peers send goes into a real core; of
// what the broker sends, the worker's assignment and its JSON are read as a daemon reads them.
#include "job/worker_spec.h"
#include "net/codec/parse.h"
#include "tests/fuzz/fuzz_broker.h"

namespace weft::fuzz {
namespace {

constexpr char kFromPeer = 'p', kFromBroker = 'b';

template <typename Message>
std::string input_of(char kind, const Message& message) {
  return kind + message.SerializeAsString();
}

std::string peer_input(const std::function<void(proto::PeerMessage&)>& fill) {
  proto::PeerMessage message;
  message.set_id(2);
  message.set_session(1);
  fill(message);
  return input_of(kFromPeer, message);
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> made;
  made.push_back(peer_input([](auto& m) {
    auto& hello = *m.mutable_hello();
    hello.mutable_capabilities()->set_device("cuda");
    hello.mutable_capabilities()->set_memory_bytes(1 << 20);
    auto& running = *hello.add_assignments();
    running.set_job(Broker::kJob);
    running.set_epoch(1);
    running.set_state("running");
  }));
  made.push_back(peer_input([](auto& m) {
    auto& update = *m.mutable_update();
    update.set_job(Broker::kJob);
    update.set_epoch(1);
    update.set_state("listening");
    update.set_advertise_host("10.0.0.1");
    update.set_port(4711);
  }));
  made.push_back(peer_input([](auto& m) {
    auto& update = *m.mutable_update();
    update.set_job(Broker::kJob);
    update.set_epoch(1);
    update.set_state("failed");
    update.mutable_error()->set_code("invalid");
    update.mutable_error()->set_message("why");
  }));
  made.push_back(peer_input([](auto& m) {
    job::WorkerEvent event;
    event.kind = job::WorkerEventKind::kStep;
    event.step = 3;
    event.loss = 1.5;
    event.edge_bytes = {{0, 100}};
    auto& report = *m.mutable_report();
    report.set_job(Broker::kJob);
    report.set_epoch(1);
    report.set_event_json(job::event_to_json(event).dump());
  }));
  made.push_back(peer_input([](auto& m) {
    auto& stored = *m.mutable_checkpoint();
    stored.set_job(Broker::kJob);
    stored.set_epoch(1);
    stored.set_step(2);
    stored.set_sha256(BrokerFiles::get().graph_blob);
    stored.set_bytes(10);
    stored.add_tensors("layer0.weight");
  }));
  made.push_back(peer_input([](auto& m) {
    m.mutable_logs()->set_job(Broker::kJob);
    m.mutable_logs()->add_lines("a line");
  }));
  made.push_back(peer_input([](auto& m) { m.mutable_blobs()->add_sha256(std::string(64, 'a')); }));
  made.push_back(peer_input([](auto& m) { m.mutable_leaving()->set_reason("tired"); }));
  made.push_back(peer_input([](auto& m) {
    auto& report = *m.mutable_probe();
    report.set_task(1);
    report.set_outcome("measured");
    auto& link = *report.add_links();
    link.set_target("p-2");
    link.set_round_trip_s(0.02);
    auto& train = *link.add_trains();
    train.set_bytes(65536);
    train.set_seconds(0.01);
  }));
  made.push_back(peer_input([](auto& m) { m.mutable_heartbeat(); }));
  proto::BrokerMessage prepare;
  job::WorkerSpec spec;
  spec.job = Broker::kJob;
  spec.spec = broker::testing::chain_spec(16);
  spec.plan.partition.stages = 1;
  spec.plan.stages.resize(1);
  spec.plan.stages[0].replicas = {Broker::kPeer};
  prepare.mutable_prepare()->set_job(Broker::kJob);
  prepare.mutable_prepare()->set_worker_spec_json(job::worker_spec_to_json(spec).dump());
  made.push_back(input_of(kFromBroker, prepare));
  return made;
}

namespace {

void from_peer(const std::string& bytes) {
  proto::PeerMessage message;
  if (!net::parse_message(bytes, message)) return;
  with_broker([&](Broker& broker) {
    broker.core().on_message(Broker::kPeer, message);
    broker.later();
    broker.core().on_message(Broker::kPeer, message);
    for (const char* page : {"", "/events", "/logs", "/metrics", "/checkpoints"}) {
      const auto answer =
          broker.call("GET", std::string("/api/v1/jobs/") + Broker::kJob + page, {}, "");
      WEFT_CHECK(answer.status == 200 && nlohmann::json::accept(answer.body));
    }
    WEFT_CHECK(broker.call("GET", "/api/v1/peers", {}, "").status == 200);
  });
}

void from_broker(const std::string& bytes) {
  proto::BrokerMessage message;
  if (!net::parse_message(bytes, message)) return;
  const auto json = nlohmann::json::parse(message.prepare().worker_spec_json(), nullptr, false);
  const auto spec = job::worker_spec_from_json(json);
  if (!spec.ok()) return;
  const auto text = job::worker_spec_to_json(*spec).dump();
  WEFT_CHECK(job::worker_spec_from_json(nlohmann::json::parse(text)).ok());
}

}  // namespace
}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const std::string input(fuzz::text_of(data, size));
  if (input.empty()) return 0;
  if (input[0] == fuzz::kFromBroker) {
    fuzz::from_broker(input.substr(1));
  } else {
    fuzz::from_peer(input.substr(1));
  }
  return 0;
}
