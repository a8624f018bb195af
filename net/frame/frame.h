// Frames: what travels inside a data-plane connection (docs/wire.md). A fixed little-endian prefix
//
//   magic u32 | version u8 | type u8 | header_len u16 | body_len u32 | checksum u64
//
// then header and body. The checksum is XXH3-64 over the prefix's first 12 bytes, header and body:
// against accidents in memory and in our own reassembly; TLS guards the wire against people.
// The codec is pure: bytes to struct and back. Lengths are checked against the bounds of the type
// before anything is allocated; bytes that do not decode give kCorrupt or kTooLarge and the caller
// closes the connection, since a stream that lied once has no frame border to resume at.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "net/message.h"

namespace weft::net {

constexpr uint32_t kFrameMagic = 0x31544657;  // "WFT1"
constexpr uint8_t kFrameVersion = 4;
constexpr size_t kPrefixBytes = 20;
constexpr size_t kMaxHeaderBytes = 512;
constexpr size_t kMaxChunkBytes = 64 * 1024;   // body of a message, chunk or padding frame
constexpr size_t kMaxHelloBytes = 512 * 1024;  // body of a hello: keys
constexpr size_t kMaxDimensions = 16;
constexpr size_t kMaxNameBytes = 128;  // job ids, peer ids
constexpr size_t kMaxReasonBytes = 400;

enum class FrameType : uint8_t {
  kHello = 1,
  kMessage,
  kChunk,
  kAck,
  kConsumed,
  kPing,
  kPong,
  kGoodbye,
  kPadding,
};

// First frame in each direction. The keys tell the other side what became of the messages it sent
// on an earlier connection: `held` arrived whole, `consumed` were also taken by the compute thread
// (their credit is free), of `partial` ones the first bytes are here. The rest is sent again.
struct PartialMessage {
  MessageKey key;
  uint64_t bytes = 0;  // arrived, from the first on
  bool operator==(const PartialMessage&) const = default;
};
struct HelloFrame {
  std::string job;
  uint32_t epoch = 0;
  int32_t stage = 0;
  std::string peer;
  uint64_t edges = 0;  // LinkRules::digest
  std::vector<MessageKey> held, consumed;
  std::vector<PartialMessage> partial;
  bool operator==(const HelloFrame&) const = default;
};

// Starts a message, or goes on with one at offset after a reconnect: its description and its next
// bytes. transfer names it within the connection.
struct MessageFrame {
  uint64_t transfer = 0;
  MessageKey key;
  bool none = false;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> sizes, strides;
  uint64_t total_bytes = 0;
  uint64_t offset = 0;
  bool operator==(const MessageFrame&) const = default;
};

// The next bytes of a started message, in order.
struct ChunkFrame {
  uint64_t transfer = 0;
  uint64_t offset = 0;
  bool operator==(const ChunkFrame&) const = default;
};

// The message arrived whole: the sender may release its bytes.
struct AckFrame {
  MessageKey key;
  int64_t at_us = 0;  // the receiver's clock, of no defined origin
  bool operator==(const AckFrame&) const = default;
};

// The receiver's compute thread took the message: its credit returns to the sender.
struct ConsumedFrame {
  MessageKey key;
  bool operator==(const ConsumedFrame&) const = default;
};

struct PingFrame {
  uint64_t number = 0;
  bool operator==(const PingFrame&) const = default;
};
struct PongFrame {
  uint64_t number = 0;
  int64_t at_us = 0;  // as in an ack
  bool operator==(const PongFrame&) const = default;
};

enum class GoodbyeReason : uint8_t {
  kDone = 1,  // nothing more to say; not a failure
  kDenied,    // the certificate or hello does not belong on this link
  kProtocol,  // the other side sent something a correct peer never sends
  kFailed,    // this side failed and leaves the job
};

struct GoodbyeFrame {
  GoodbyeReason reason = GoodbyeReason::kDone;
  std::string text;
  bool operator==(const GoodbyeFrame&) const = default;
};

// Bytes that say nothing: a way is shown what it carries (net/tls/warm_up.h).
struct PaddingFrame {
  bool operator==(const PaddingFrame&) const = default;
};

using Frame = std::variant<HelloFrame, MessageFrame, ChunkFrame, AckFrame, ConsumedFrame, PingFrame,
                           PongFrame, GoodbyeFrame, PaddingFrame>;

struct Prefix {
  FrameType type = FrameType::kPing;
  uint16_t header_bytes = 0;
  uint32_t body_bytes = 0;
  uint64_t checksum = 0;
  size_t rest_bytes() const { return size_t{header_bytes} + body_bytes; }
};

// Appends the whole frame to out. body: elements of a message or chunk frame, or whatever of a
// padding frame, at most kMaxChunkBytes; empty for all others.
void encode_frame(const Frame& frame, std::span<const std::byte> body, std::vector<std::byte>& out);
// The same without the body, which follows it on the wire. Not for a hello, whose body is its own.
void encode_head(const Frame& frame, std::span<const std::byte> body, std::vector<std::byte>& out);

// bytes: exactly kPrefixBytes.
Result<Prefix> decode_prefix(std::span<const std::byte> bytes);

struct DecodedFrame {
  Frame frame;
  std::span<const std::byte> body;  // points into the bytes given
};
// whole: prefix, header and body of one frame, as announced by its prefix.
Result<DecodedFrame> decode_frame(const Prefix& prefix, std::span<const std::byte> whole);
// The same where prefix and header (head) and body lie apart.
Result<DecodedFrame> decode_frame(const Prefix& prefix, std::span<const std::byte> head,
                                  std::span<const std::byte> body);
// What the head of a chunk frame says, unverified: good for choosing where its body is put until
// the checksum is known. Nothing for any other frame.
std::optional<ChunkFrame> peek_chunk(const Prefix& prefix, std::span<const std::byte> head);

// Longest header + prefix of a message frame with these dimensions; what is left of a frame of
// frame_bytes is body.
size_t message_overhead_bytes(size_t dimensions);
constexpr size_t kChunkOverheadBytes = kPrefixBytes + 16;

}  // namespace weft::net
