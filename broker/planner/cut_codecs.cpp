#include "broker/planner/cut_codecs.h"

namespace weft::broker {

Coded coded(const Problem& problem, int32_t from, int32_t to, const Chain::Values& values,
            bool gradient, double slowest_s) {
  const auto a = static_cast<size_t>(from), b = static_cast<size_t>(to);
  Coded all = problem.compressor.ask(
      {values.bytes / values.count, values.dtype, gradient, problem.network.latency_s(a, b),
       problem.network.seconds_per_byte(a, b), problem.memory_speed_of(a),
       problem.memory_speed_of(b), slowest_s});
  all.wire_bytes *= values.count;
  all.encode_s *= values.count;
  all.decode_s *= values.count;
  return all;
}

CutMessages messages_over(const Problem& problem, int32_t from, int32_t to, int32_t cut,
                          double slowest_s) {
  CutMessages messages;
  if (!problem.compressor) {
    messages.there = problem.chain.forward_bytes[static_cast<size_t>(cut)];
    messages.back = problem.chain.backward_bytes[static_cast<size_t>(cut)];
    return messages;
  }
  for_each_values(problem, cut, [&](const Chain::Values& values) {
    const Coded there = coded(problem, from, to, values, false, slowest_s);
    messages.there += there.wire_bytes;
    messages.sender_forward_s += there.encode_s;
    messages.receiver_forward_s += there.decode_s;
    if (!values.gradient) return;
    const Coded back = coded(problem, to, from, values, true, slowest_s);
    messages.back += back.wire_bytes;
    messages.receiver_backward_s += back.encode_s;
    messages.sender_backward_s += back.decode_s;
  });
  return messages;
}

}  // namespace weft::broker
