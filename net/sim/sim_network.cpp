#include "net/sim/sim_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "base/rng.h"
#include "net/frame/run_meter.h"

namespace weft::net {
namespace {

// Consumed keys an endpoint remembers to recognise late duplicates.
constexpr size_t kMaxConsumedKeys = 1 << 16;
// A message lost this often in a row is let through: a simulation must end.
constexpr int kMaxLosses = 64;
// What a message costs on the wire beside its elements (net/frame: prefix and message header).
constexpr int64_t kHeaderBytes = 96;

// Messages of one channel share a credit limit.
struct Channel {
  int32_t from = 0, to = 0;
  MessageKind kind = MessageKind::kActivation;
  uint32_t edge = 0;
  auto operator<=>(const Channel&) const = default;
};

struct ChannelState {
  int32_t in_flight = 0;
  std::deque<Message> waiting;  // for a credit
};

struct Event {
  enum Kind { kArrival, kCredit } kind = kArrival;
  Channel channel;
  Message message;
};

Channel channel_of(const MessageKey& key, int32_t to) {
  return {key.from, to, key.kind, key.edge};
}

}  // namespace

class SimEndpoint final : public Endpoint {
 public:
  SimEndpoint(SimNetwork::Impl& network, int32_t stage) : network_(network), stage_(stage) {}

  Status send(int32_t to_stage, Message message) override;
  std::optional<Message> take(const MessageKey& key) override;
  Status wait(int32_t timeout_ms) override;
  Status flush(int32_t timeout_ms) override;
  void interrupt() override { interrupted_ = true; }
  EndpointStats stats() const override { return stats_; }

  void arrive(Message message);

  EndpointStats stats_;
  int64_t unacknowledged_ = 0;

 private:
  SimNetwork::Impl& network_;
  const int32_t stage_;
  bool arrived_ = false, interrupted_ = false;
  std::map<MessageKey, Message> inbox_;
  std::set<MessageKey> consumed_;
  std::deque<MessageKey> consumed_order_;
};

struct SimNetwork::Impl {
  SimOptions options;
  Rng rng{0};
  double now_ms = 0;
  uint64_t event_count = 0;
  std::map<std::pair<double, uint64_t>, Event> events;  // by time, then order of creation
  // From one stage to another.
  struct Link {
    double free_ms = 0;  // when it has sent what it was given
    RunMeter runs;
  };
  std::map<std::pair<int32_t, int32_t>, Link> links;
  std::map<Channel, int32_t> limits;
  std::map<Channel, ChannelState> channels;
  std::vector<std::unique_ptr<SimEndpoint>> endpoints;

  void schedule(double at_ms, Event event) {
    events.emplace(std::pair(at_ms, event_count++), std::move(event));
  }

  // nullptr: the channel is unlimited.
  const int32_t* limit(const Channel& channel) const {
    const auto it = limits.find(channel);
    return it == limits.end() ? nullptr : &it->second;
  }

  void offer(const Channel& channel, Message message) {
    ChannelState& state = channels[channel];
    const int32_t* bound = limit(channel);
    if (bound && state.in_flight >= *bound) {
      state.waiting.push_back(std::move(message));
      return;
    }
    ++state.in_flight;
    transmit(channel, std::move(message));
  }

  void transmit(const Channel& channel, Message message) {
    EndpointStats& stats = endpoints[static_cast<size_t>(channel.from)]->stats_;
    const int64_t bytes = kHeaderBytes + static_cast<int64_t>(message.bytes.size());
    stats.bytes_sent[channel.edge] += bytes;
    Link& link = links[{channel.from, channel.to}];
    double sent_ms = std::max(now_ms, link.free_ms);
    if (link.free_ms < now_ms) link.runs.lull();
    link.runs.writes(sent_ms / 1e3, static_cast<uint64_t>(bytes), message.key);
    if (options.bandwidth_mbit_s > 0) {
      sent_ms += static_cast<double>(bytes) * 8e-3 / options.bandwidth_mbit_s;
      link.free_ms = sent_ms;
    }
    double at_ms = sent_ms + options.latency_ms + options.jitter_ms * rng.uniform();
    for (int i = 0; i < kMaxLosses && rng.uniform() < options.loss; ++i) {
      at_ms += 2 * options.latency_ms + options.jitter_ms * rng.uniform();
      stats.bytes_sent[channel.edge] += bytes;
      ++stats.resent;
    }
    if (rng.uniform() < options.duplicate) {
      const double again_ms = at_ms + options.latency_ms + options.jitter_ms * rng.uniform();
      Message again;  // arrives second and is dropped by its key: it needs no bytes
      again.key = message.key;
      schedule(again_ms, {Event::kArrival, channel, std::move(again)});
    }
    schedule(at_ms, {Event::kArrival, channel, std::move(message)});
  }

  void give_credit(const Channel& channel) {
    ChannelState& state = channels[channel];
    --state.in_flight;
    if (state.waiting.empty()) return;
    Message next = std::move(state.waiting.front());
    state.waiting.pop_front();
    ++state.in_flight;
    transmit(channel, std::move(next));
  }

  void measure(const Channel& channel, const MessageKey& key) {
    Link& link = links[{channel.from, channel.to}];
    if (link.free_ms <= now_ms) link.runs.lull();
    const double trip_s = 2 * options.latency_ms / 1e3;
    const double known_s = (now_ms + options.latency_ms) / 1e3;
    if (!link.runs.acknowledged(key, known_s, trip_s, 0)) return;
    endpoints[static_cast<size_t>(channel.from)]->stats_.carried[channel.to] = {
        link.runs.bytes_s(known_s), trip_s, link.runs.runs()};
  }

  bool deliver_next() {
    if (events.empty()) return false;
    auto node = events.extract(events.begin());
    now_ms = std::max(now_ms, node.key().first);
    Event& event = node.mapped();
    if (event.kind == Event::kCredit) {
      give_credit(event.channel);
    } else {
      measure(event.channel, event.message.key);
      endpoints[static_cast<size_t>(event.channel.to)]->arrive(std::move(event.message));
    }
    return true;
  }

  // Delivers until done() or the deadline; virtual time then stands at the deadline at most.
  template <typename Done>
  bool run_until(double deadline_ms, const Done& done) {
    while (!done()) {
      if (events.empty() || events.begin()->first.first > deadline_ms) {
        now_ms = std::max(now_ms, deadline_ms);
        return false;
      }
      deliver_next();
    }
    return true;
  }
};

Status SimEndpoint::send(int32_t to_stage, Message message) {
  if (to_stage < 0 || static_cast<size_t>(to_stage) >= network_.endpoints.size() ||
      to_stage == stage_) {
    return make_error(Code::kNotFound,
                      fmt::format("stage {} has no link to stage {}", stage_, to_stage));
  }
  if (message.key.from != stage_) {
    return make_error(Code::kInvalid,
                      fmt::format("stage {} cannot send {}", stage_, message.key.text()));
  }
  ++unacknowledged_;
  const Channel channel = channel_of(message.key, to_stage);
  network_.offer(channel, std::move(message));
  return {};
}

void SimEndpoint::arrive(Message message) {
  if (consumed_.contains(message.key) || inbox_.contains(message.key)) return;
  --network_.endpoints[static_cast<size_t>(message.key.from)]->unacknowledged_;
  arrived_ = true;
  const MessageKey key = message.key;
  inbox_.emplace(key, std::move(message));
}

std::optional<Message> SimEndpoint::take(const MessageKey& key) {
  auto node = inbox_.extract(key);
  if (node.empty()) return std::nullopt;
  consumed_.insert(key);
  consumed_order_.push_back(key);
  if (consumed_order_.size() > kMaxConsumedKeys) {
    consumed_.erase(consumed_order_.front());
    consumed_order_.pop_front();
  }
  const Channel channel = channel_of(key, stage_);
  if (network_.limit(channel)) {
    network_.schedule(network_.now_ms + network_.options.latency_ms, {Event::kCredit, channel, {}});
  }
  return std::move(node.mapped());
}

Status SimEndpoint::wait(int32_t timeout_ms) {
  const bool woken =
      network_.run_until(network_.now_ms + timeout_ms, [this] { return arrived_ || interrupted_; });
  if (std::exchange(interrupted_, false)) {
    return make_error(Code::kCancelled, "the wait was interrupted");
  }
  arrived_ = false;
  if (woken) return {};
  return make_error(Code::kTimeout,
                    fmt::format("nothing arrived at stage {} within {} ms", stage_, timeout_ms));
}

Status SimEndpoint::flush(int32_t timeout_ms) {
  if (network_.run_until(network_.now_ms + timeout_ms, [this] { return unacknowledged_ == 0; })) {
    return {};
  }
  return make_error(Code::kTimeout, fmt::format("{} messages of stage {} not acknowledged within "
                                                "{} ms",
                                                unacknowledged_, stage_, timeout_ms));
}

SimNetwork::SimNetwork(int32_t stages, const SimOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  impl_->rng = Rng(options.seed);
  for (int32_t stage = 0; stage < stages; ++stage) {
    impl_->endpoints.push_back(std::make_unique<SimEndpoint>(*impl_, stage));
  }
}

SimNetwork::~SimNetwork() = default;

void SimNetwork::set_credits(const std::vector<EdgeLink>& edges) {
  impl_->limits.clear();
  for (const EdgeLink& e : edges) {
    impl_->limits[{e.from, e.to, MessageKind::kActivation, e.edge}] = e.activation_credits;
    impl_->limits[{e.from, e.to, MessageKind::kEvalActivation, e.edge}] = e.activation_credits;
    impl_->limits[{e.to, e.from, MessageKind::kGradient, e.edge}] = e.gradient_credits;
  }
}

Endpoint& SimNetwork::endpoint(int32_t stage) {
  WEFT_CHECK(stage >= 0 && static_cast<size_t>(stage) < impl_->endpoints.size());
  return *impl_->endpoints[static_cast<size_t>(stage)];
}

bool SimNetwork::deliver_next() {
  return impl_->deliver_next();
}
double SimNetwork::now_ms() const {
  return impl_->now_ms;
}

}  // namespace weft::net
