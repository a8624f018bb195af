#include "executor/worker_goodbye.h"

#include <limits>

#include "base/log.h"

namespace weft::executor {
namespace {

constexpr int32_t kWaitMs = 1000;

// Norms and clip messages of a step that no job reaches.
net::MessageKey goodbye_key(uint32_t epoch, net::MessageKind kind, int32_t from) {
  net::MessageKey key;
  key.epoch = epoch;
  key.step = std::numeric_limits<uint64_t>::max();
  key.kind = kind;
  key.from = from;
  return key;
}

net::Message empty_message(const net::MessageKey& key) {
  net::Message message;
  message.key = key;
  message.none = true;
  return message;
}

Status wait_for(net::Endpoint& endpoint, WorkerControl& control, const net::MessageKey& key) {
  for (;;) {
    if (endpoint.take(key)) return {};
    if (control.stopped()) return control.stop_error();
    auto waited = endpoint.wait(kWaitMs);
    control.moved();
    if (waited || waited.error().code == Code::kTimeout ||
        waited.error().code == Code::kCancelled) {
      continue;
    }
    // It may have come with the failure's last bytes.
    if (endpoint.take(key)) return {};
    return waited;
  }
}

}  // namespace

Status flush_patiently(net::Endpoint& endpoint, WorkerControl& control) {
  bool said = false;
  for (;;) {
    if (control.stopped()) return control.stop_error();
    auto flushed = endpoint.flush(kWaitMs);
    control.moved();  // waiting for a slow link is not being stuck
    if (flushed || flushed.error().code != Code::kTimeout) return flushed;
    if (!said) log_info("waiting for the last messages to arrive: {}", flushed.error().message);
    said = true;
  }
}

Status say_goodbye(net::Endpoint& endpoint, WorkerControl& control, uint32_t epoch, int32_t stage,
                   int32_t stages, int32_t loss_stage) {
  using net::MessageKind;
  if (stages < 2) return {};
  if (stage != loss_stage) {
    const auto done = goodbye_key(epoch, MessageKind::kNorms, stage);
    WEFT_TRY_STATUS(endpoint.send(loss_stage, empty_message(done)));
    return wait_for(endpoint, control, goodbye_key(epoch, MessageKind::kClip, loss_stage));
  }
  for (int32_t other = 0; other < stages; ++other) {
    if (other == stage) continue;
    WEFT_TRY_STATUS(wait_for(endpoint, control, goodbye_key(epoch, MessageKind::kNorms, other)));
  }
  for (int32_t other = 0; other < stages; ++other) {
    if (other == stage) continue;
    WEFT_TRY_STATUS(
        endpoint.send(other, empty_message(goodbye_key(epoch, MessageKind::kClip, stage))));
  }
  return flush_patiently(endpoint, control);
}

}  // namespace weft::executor
