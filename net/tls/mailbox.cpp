#include "net/tls/mailbox.h"

#include <fmt/format.h>

#include <chrono>

namespace weft::net {
namespace {
using Lock = std::unique_lock<std::mutex>;
std::chrono::milliseconds ms(int32_t count) {
  return std::chrono::milliseconds(count);
}
}  // namespace

Status Mailbox::check() const {
  Lock lock(mutex_);
  if (failed_) return *failed_;
  return {};
}

std::optional<Message> Mailbox::take(const MessageKey& key) {
  Lock lock(mutex_);
  auto node = inbox_.extract(key);
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

Status Mailbox::wait(int32_t timeout_ms) {
  Lock lock(mutex_);
  changed_.wait_for(lock, ms(timeout_ms), [this] { return failed_ || interrupted_ || arrived_; });
  if (failed_) return *failed_;
  if (std::exchange(interrupted_, false)) {
    return make_error(Code::kCancelled, "the wait was interrupted");
  }
  if (std::exchange(arrived_, false)) return {};
  if (stale_) return *stale_;
  return make_error(Code::kTimeout, fmt::format("nothing arrived within {} ms", timeout_ms));
}

Status Mailbox::flush(int32_t timeout_ms) {
  Lock lock(mutex_);
  changed_.wait_for(lock, ms(timeout_ms), [this] { return failed_ || unacknowledged_ == 0; });
  if (failed_) return *failed_;
  if (unacknowledged_ == 0) return {};
  return make_error(Code::kTimeout, fmt::format("{} messages were not acknowledged within {} ms",
                                                unacknowledged_, timeout_ms));
}

Status Mailbox::wait_linked(size_t links, int32_t timeout_ms) {
  Lock lock(mutex_);
  changed_.wait_for(lock, ms(timeout_ms), [&] { return failed_ || up_.size() >= links; });
  if (failed_) return *failed_;
  if (up_.size() >= links) return {};
  return make_error(Code::kTimeout, fmt::format("{} of {} links are up", up_.size(), links));
}

void Mailbox::wait_closed(int32_t timeout_ms) {
  Lock lock(mutex_);
  changed_.wait_for(lock, ms(timeout_ms), [this] { return connections_ == 0; });
}

void Mailbox::count_queued() {
  Lock lock(mutex_);
  ++unacknowledged_;
}

bool Mailbox::has_left(int32_t stage) const {
  Lock lock(mutex_);
  return left_.contains(stage);
}

void Mailbox::drop_released() {
  std::vector<Message> dropped;  // destroyed after the lock is gone
  Lock lock(mutex_);
  dropped.swap(released_);
  lock.unlock();
}

void Mailbox::interrupt() {
  Lock lock(mutex_);
  interrupted_ = true;
  changed_.notify_all();
}

EndpointStats Mailbox::stats() const {
  Lock lock(mutex_);
  return stats_;
}

void Mailbox::deliver(Message message) {
  Lock lock(mutex_);
  const MessageKey key = message.key;
  inbox_.emplace(key, std::move(message));
  arrived_ = true;
  changed_.notify_all();
}

void Mailbox::release(std::vector<Message> messages) {
  if (messages.empty()) return;
  Lock lock(mutex_);
  unacknowledged_ -= static_cast<int64_t>(messages.size());
  for (Message& message : messages) released_.push_back(std::move(message));
  changed_.notify_all();
}

void Mailbox::fail(Error error) {
  Lock lock(mutex_);
  if (!failed_) failed_ = std::move(error);
  changed_.notify_all();
}

bool Mailbox::failed() const {
  Lock lock(mutex_);
  return failed_.has_value();
}

void Mailbox::link_up(int32_t stage) {
  Lock lock(mutex_);
  up_.insert(stage);
  trouble_.erase(stage);
  changed_.notify_all();
}

void Mailbox::link_trouble(int32_t stage, std::string text) {
  Lock lock(mutex_);
  trouble_[stage] = std::move(text);
}

void Mailbox::link_left(int32_t stage) {
  Lock lock(mutex_);
  left_.insert(stage);
}

void Mailbox::set_stale(Error error) {
  Lock lock(mutex_);
  stale_ = std::move(error);
}

void Mailbox::connections(size_t count) {
  Lock lock(mutex_);
  connections_ = count;
  changed_.notify_all();
}

void Mailbox::count_sent(uint32_t edge, int64_t bytes) {
  Lock lock(mutex_);
  stats_.bytes_sent[edge] += bytes;
}

void Mailbox::count_reconnect(int64_t resent) {
  Lock lock(mutex_);
  ++stats_.reconnects;
  stats_.resent += resent;
}

void Mailbox::count_carried(int32_t stage, const CarriedTraffic& carried) {
  Lock lock(mutex_);
  stats_.carried[stage] = carried;
}

bool Mailbox::is_up(int32_t stage) const {
  Lock lock(mutex_);
  return up_.contains(stage);
}

std::string Mailbox::trouble(int32_t stage) const {
  Lock lock(mutex_);
  const auto it = trouble_.find(stage);
  return it == trouble_.end() ? std::string() : it->second;
}

}  // namespace weft::net
