// The data plane behind TLS: frames as a hostile neighbour with right checksums would send them,
// through the codec into the inbox of a link. An input is a row of frames: the type, two bytes of
// header length, two of body length, header, body.
#include <algorithm>
#include <limits>

#include "base/hash.h"
#include "net/frame/frame.h"
#include "net/frame/message_inbox.h"
#include "tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

constexpr uint64_t kMaxMessageBytes = 1 << 16;
constexpr size_t kCheckedBytes = 12;

void put(std::vector<std::byte>& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

// A frame with the lengths and the checksum it should have.
std::vector<std::byte> sealed(uint8_t type, std::string_view header, std::string_view body) {
  std::vector<std::byte> start, rest, whole;
  put(start, net::kFrameMagic, 4);
  put(start, net::kFrameVersion, 1);
  put(start, type, 1);
  put(start, header.size(), 2);
  put(start, body.size(), 4);
  for (const char c : header) rest.push_back(static_cast<std::byte>(c));
  for (const char c : body) rest.push_back(static_cast<std::byte>(c));
  whole = start;
  put(whole, xxh3(std::span(start).first(kCheckedBytes)) ^ xxh3(rest), 8);
  whole.insert(whole.end(), rest.begin(), rest.end());
  return whole;
}

class Receiver {
 public:
  // False: the connection would be closed.
  bool take(std::span<const std::byte> whole) {
    const auto prefix = net::decode_prefix(whole.first(net::kPrefixBytes));
    if (!prefix.ok()) return false;
    const auto decoded = net::decode_frame(*prefix, whole);
    if (!decoded.ok()) return false;
    encodes_as_itself(*decoded);
    if (const auto* message = std::get_if<net::MessageFrame>(&decoded->frame)) {
      return arrived(inbox_.on_message(*message, decoded->body));
    }
    if (const auto* chunk = std::get_if<net::ChunkFrame>(&decoded->frame)) {
      // Into the message itself, where the head alone says so, as the socket does.
      const auto head = whole.first(whole.size() - decoded->body.size());
      const auto peeked = net::peek_chunk(*prefix, head);
      WEFT_CHECK(peeked && *peeked == *chunk);
      const auto room = inbox_.room(*peeked, decoded->body.size());
      if (room.empty()) return arrived(inbox_.on_chunk(*chunk, decoded->body));
      std::copy(decoded->body.begin(), decoded->body.end(), room.begin());
      WEFT_CHECK(net::decode_frame(*prefix, head, room).ok());
      return arrived(inbox_.on_chunk(*chunk, room));
    }
    if (std::holds_alternative<net::HelloFrame>(decoded->frame)) {
      inbox_.on_disconnected();
      net::HelloFrame hello;
      inbox_.describe(hello);
    }
    return true;
  }

 private:
  static void encodes_as_itself(const net::DecodedFrame& decoded) {
    std::vector<std::byte> out;
    const bool hello = std::holds_alternative<net::HelloFrame>(decoded.frame);
    net::encode_frame(decoded.frame, hello ? std::span<const std::byte>() : decoded.body, out);
    const auto prefix = net::decode_prefix(std::span(out).first(net::kPrefixBytes));
    WEFT_CHECK(prefix.ok());
    const auto again = net::decode_frame(*prefix, out);
    WEFT_CHECK(again.ok() && again->frame == decoded.frame);
  }

  bool arrived(const Result<net::MessageInbox::Arrival>& arrival) {
    if (!arrival.ok()) return false;
    if (!arrival->message) return true;
    WEFT_CHECK(arrival->message->bytes.size() <= kMaxMessageBytes);
    if (++whole_ % 2 == 0) inbox_.on_taken(arrival->message->key);
    return true;
  }

  net::LinkRules rules_{1, {net::EdgeLink{0, 0, 1, 2, 2}}, {0}};
  net::MessageInbox inbox_{rules_, 0, 1, 1, kMaxMessageBytes};
  int whole_ = 0;
};

// The frame as an input says it.
std::string input_of(const net::Frame& frame, std::string_view body) {
  std::vector<std::byte> out;
  net::encode_frame(frame, std::as_bytes(std::span(body)), out);
  const std::string all(reinterpret_cast<const char*>(out.data()), out.size());
  return all.substr(5, 3) + all.substr(8, 2) + all.substr(net::kPrefixBytes);
}

net::MessageFrame message(uint64_t transfer, uint64_t step) {
  net::MessageFrame frame;
  frame.transfer = transfer;
  frame.key = {1, step, 0, 0, net::MessageKind::kActivation, 0};
  frame.sizes = {2, 3};
  frame.strides = {3, 1};
  frame.total_bytes = 24;
  return frame;
}

}  // namespace

std::vector<std::string> seeds() {
  net::HelloFrame hello{"job", 1, 0, "peer-0", 99, {}, {}, {}};
  hello.held = {message(1, 0).key};
  hello.partial = {{message(1, 1).key, 12}};
  const std::string body(12, 'b');
  net::MessageFrame none = message(2, 5);
  none.none = true;
  none.total_bytes = 0;
  return {
      input_of(hello, ""),
      input_of(message(1, 0), body) + input_of(net::ChunkFrame{1, 12}, body),
      input_of(message(1, 0), body + body) + input_of(message(2, 1), body + body) +
          input_of(message(3, 2), body + body),
      input_of(none, ""),
      input_of(net::AckFrame{message(1, 0).key, 5}, "") +
          input_of(net::ConsumedFrame{message(1, 0).key}, ""),
      input_of(net::PingFrame{7}, "") + input_of(net::PongFrame{7, -1}, ""),
      input_of(net::PaddingFrame{}, "nothing") + input_of(net::PaddingFrame{}, ""),
      input_of(net::GoodbyeFrame{net::GoodbyeReason::kFailed, "out of memory"}, ""),
      input_of(message(1, 0), body) + input_of(hello, "") + input_of(message(1, 0), body + body)};
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  std::string_view left = fuzz::text_of(data, size);
  const std::string start(left.substr(0, net::kPrefixBytes));
  if (start.size() == net::kPrefixBytes) {
    (void)net::decode_prefix(std::as_bytes(std::span(start)));
  }
  fuzz::Receiver receiver;
  constexpr size_t kLengths = 5;
  while (left.size() >= kLengths) {
    const auto number = [&left](size_t at) {
      return static_cast<size_t>(static_cast<uint8_t>(left[at])) |
             static_cast<size_t>(static_cast<uint8_t>(left[at + 1])) << 8;
    };
    const auto type = static_cast<uint8_t>(left[0]);
    const size_t header_bytes = number(1), body_bytes = number(3);
    left.remove_prefix(kLengths);
    const std::string_view header = left.substr(0, header_bytes);
    left.remove_prefix(header.size());
    const std::string_view body = left.substr(0, body_bytes);
    left.remove_prefix(body.size());
    if (!receiver.take(fuzz::sealed(type, header, body))) break;
  }
  return 0;
}
