#include "net/tls/tls_endpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "net/tls/context.h"
#include "net/tls/tls_core.h"

namespace weft::net {
namespace {

class TlsEndpointImpl final : public TlsEndpoint {
 public:
  explicit TlsEndpointImpl(std::unique_ptr<TlsCore> core) : core_(std::move(core)) {}
  ~TlsEndpointImpl() override;

  Status send(int32_t to_stage, Message message) override;
  std::optional<Message> take(const MessageKey& key) override;
  Status wait(int32_t timeout_ms) override;
  Status flush(int32_t timeout_ms) override;
  void interrupt() override { core_->mailbox().interrupt(); }
  EndpointStats stats() const override { return core_->mailbox().stats(); }
  uint16_t port() const override { return core_->port(); }
  Status connect(const std::vector<Neighbour>& neighbours, int32_t timeout_ms) override;
  void set_leave_reason(const std::string& failure) override { leave_reason_ = failure; }

 private:
  std::unique_ptr<TlsCore> core_;
  std::string leave_reason_;
  bool began_ = false;
};

TlsEndpointImpl::~TlsEndpointImpl() {
  if (began_) {
    const auto status = core_->mailbox().check();
    if (leave_reason_.empty() && !status.ok()) leave_reason_ = status.error().message;
    core_->leave(leave_reason_.empty() ? GoodbyeReason::kDone : GoodbyeReason::kFailed,
                 leave_reason_);
    core_->mailbox().wait_closed(1000);
  }
  core_->mailbox().drop_released();
}

Status check_message(const TlsCore& core, int32_t to_stage, const Message& message) {
  const auto invalid = [&](const std::string& why) {
    return make_error(Code::kInvalid, fmt::format("cannot send {} to stage {}: {}",
                                                  message.key.text(), to_stage, why));
  };
  if (!core.linked(to_stage)) {
    return make_error(Code::kNotFound, fmt::format("stage {} has no link to stage {}",
                                                   core.options().stage, to_stage));
  }
  if (core.rules().credits(channel_of(message.key), core.options().stage, to_stage) <= 0) {
    return make_error(Code::kNotFound, fmt::format("no edge of the plan carries {} to stage {}",
                                                   message.key.text(), to_stage));
  }
  if (message.key.from != core.options().stage) return invalid("it names another sender");
  if (message.key.epoch != core.options().epoch) return invalid("it belongs to another epoch");
  if (message.sizes.size() > kMaxDimensions) return invalid("it has too many dimensions");
  if (message.sizes.size() != message.strides.size()) return invalid("sizes and strides differ");
  if (message.bytes.size() > core.options().max_message_bytes) {
    return invalid(fmt::format("it has {} bytes, the limit is {}", message.bytes.size(),
                               core.options().max_message_bytes));
  }
  return {};
}

Status TlsEndpointImpl::send(int32_t to_stage, Message message) {
  core_->mailbox().drop_released();
  WEFT_TRY_STATUS(core_->mailbox().check());
  WEFT_TRY_STATUS(check_message(*core_, to_stage, message));
  if (core_->mailbox().has_left(to_stage)) {
    return make_error(
        Code::kUnavailable,
        fmt::format("stage {} has left the job: {} cannot be sent", to_stage, message.key.text()));
  }
  if (message.none) message.bytes = {};
  core_->post_send(to_stage, std::move(message));
  return {};
}

std::optional<Message> TlsEndpointImpl::take(const MessageKey& key) {
  core_->mailbox().drop_released();
  auto message = core_->mailbox().take(key);
  if (message) core_->post_taken(key);
  return message;
}

Status TlsEndpointImpl::wait(int32_t timeout_ms) {
  core_->mailbox().drop_released();
  return core_->mailbox().wait(timeout_ms);
}

Status TlsEndpointImpl::flush(int32_t timeout_ms) {
  auto status = core_->mailbox().flush(timeout_ms);
  core_->mailbox().drop_released();
  return status;
}

Status TlsEndpointImpl::connect(const std::vector<Neighbour>& neighbours, int32_t timeout_ms) {
  if (began_) return make_error(Code::kExists, "connect was called already");
  bool dialable = true;
  for (const Neighbour& neighbour : neighbours) {
    if (neighbour.stage == core_->options().stage) dialable = neighbour.port != 0;
  }
  WEFT_TRY_STATUS(core_->begin(neighbours, dialable));
  began_ = true;
  auto& mailbox = core_->mailbox();
  auto status = mailbox.wait_linked(core_->rules().neighbours().size(), timeout_ms);
  if (status.ok() || status.error().code != Code::kTimeout) return status;
  std::string message =
      fmt::format("stage {} has not all its links after {} ms", core_->options().stage, timeout_ms);
  for (const Neighbour& neighbour : neighbours) {
    if (!core_->linked(neighbour.stage) || mailbox.is_up(neighbour.stage)) continue;
    const std::string trouble = mailbox.trouble(neighbour.stage);
    message +=
        fmt::format("; stage {} (peer {} at {}:{}): {}", neighbour.stage, neighbour.peer,
                    neighbour.host, neighbour.port, trouble.empty() ? "did not dial us" : trouble);
  }
  const Error error = make_error(Code::kUnavailable, message,
                                 "see whether those peers run and their ports are reachable");
  mailbox.fail(error);
  return error;
}

Status check_options(const TlsEndpointOptions& options) {
  const auto invalid = [](const std::string& why) { return make_error(Code::kInvalid, why); };
  if (options.job.empty() || options.job.size() > kMaxNameBytes) {
    return invalid(fmt::format("a job id has 1 to {} bytes", kMaxNameBytes));
  }
  if (options.peer.empty() || options.peer.size() > kMaxNameBytes) {
    return invalid(fmt::format("a peer id has 1 to {} bytes", kMaxNameBytes));
  }
  if (options.chunk_bytes < 4096 || static_cast<size_t>(options.chunk_bytes) > kMaxChunkBytes) {
    return invalid(fmt::format("chunk_bytes is {}, allowed are 4096 to {}", options.chunk_bytes,
                               kMaxChunkBytes));
  }
  if (options.link_timeout_ms < 1 || options.ping_interval_ms < 1 ||
      options.handshake_timeout_ms < 1) {
    return invalid("timeouts of the data plane must be positive");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<TlsEndpoint>> TlsEndpoint::listen(TlsEndpointOptions options) {
  WEFT_TRY_STATUS(check_options(options));
  WEFT_TRY(auto context, make_tls_context(options));
  auto core = std::make_unique<TlsCore>(std::move(options), std::move(context));
  WEFT_TRY_STATUS(core->start());
  return std::unique_ptr<TlsEndpoint>(std::make_unique<TlsEndpointImpl>(std::move(core)));
}

}  // namespace weft::net
