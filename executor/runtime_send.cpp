#include "executor/runtime_impl.h"

namespace weft::executor {

net::MessageKey RuntimeImpl::key(net::MessageKind kind, int32_t micro_batch, uint32_t edge,
                                 int32_t from) const {
  net::MessageKey key;
  key.epoch = options_.plan.epoch;
  key.step = static_cast<uint64_t>(step_);
  key.micro_batch = static_cast<uint32_t>(micro_batch);
  key.edge = edge;
  key.kind = kind;
  key.from = from;
  return key;
}

Status RuntimeImpl::send_activation(const job::Action& action) {
  const OutgoingEdge& edge = active().outgoing.at(action.edge);
  InFlight& flight = flights_.at(action.micro_batch);
  const auto kind = evaluating_ ? net::MessageKind::kEvalActivation : net::MessageKind::kActivation;
  const auto to_send = flight.to_send.find(action.edge);
  WEFT_CHECK(to_send != flight.to_send.end());
  WEFT_TRY(net::Message message,
           encode_tensor(key(kind, action.micro_batch, edge.wire, options_.stage), to_send->second,
                         *transfer_));
  flight.to_send.erase(to_send);
  if (evaluating_ && flight.to_send.empty()) flights_.erase(action.micro_batch);
  post(edge.to, std::move(message));
  return {};
}

Status RuntimeImpl::send_gradient(const job::Action& action) {
  const IncomingEdge& edge = active().incoming.at(action.edge);
  InFlight& flight = flights_.at(action.micro_batch);
  const auto to_send = flight.gradients_to_send.find(action.edge);
  WEFT_CHECK(to_send != flight.gradients_to_send.end());
  WEFT_TRY(net::Message message, encode_bundle(key(net::MessageKind::kGradient, action.micro_batch,
                                                   edge.wire, options_.stage),
                                               to_send->second, *transfer_));
  flight.gradients_to_send.erase(to_send);
  if (flight.gradients_to_send.empty() && !flight.owes_weights) flights_.erase(action.micro_batch);
  post(edge.from, std::move(message));
  return {};
}

void RuntimeImpl::post(int32_t to_stage, net::Message message) {
  outbox_.push_back({to_stage, std::move(message), transfer_->mark()});
}

// Copies end in the order they began: the first that has not, ends the look.
Status RuntimeImpl::send_copied() {
  while (!outbox_.empty() && outbox_.front().copied->passed()) {
    PendingSend ready = std::move(outbox_.front());
    outbox_.pop_front();
    WEFT_TRY_STATUS(endpoint_.send(ready.to, std::move(ready.message)));
  }
  return {};
}

PendingNumbers RuntimeImpl::fetch_numbers(const at::Tensor& doubles) {
  at::Tensor host = transfer_->to_host(doubles);
  return {std::move(host), transfer_->mark()};
}

}  // namespace weft::executor
