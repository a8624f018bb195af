#include "net/frame/frame.h"

#include <fmt/format.h>

#include "base/hash.h"
#include "net/frame/wire.h"

namespace weft::net {
namespace {

constexpr size_t kCheckedPrefixBytes = 12;
constexpr size_t kKeyBytes = 25;
constexpr size_t kPartialBytes = kKeyBytes + 8;
constexpr size_t kMessageFixedBytes = 8 + kKeyBytes + 1 + 1 + 1 + 8 + 8;

void write_key(FieldWriter& out, const MessageKey& key) {
  out.number(key.epoch);
  out.number(key.step);
  out.number(key.micro_batch);
  out.number(key.edge);
  out.number(static_cast<uint8_t>(key.kind));
  out.number(key.from);
}

Result<MessageKey> read_key(FieldReader& in) {
  MessageKey key;
  key.epoch = in.number<uint32_t>();
  key.step = in.number<uint64_t>();
  key.micro_batch = in.number<uint32_t>();
  key.edge = in.number<uint32_t>();
  const auto kind = in.number<uint8_t>();
  key.from = in.number<int32_t>();
  if (in.bad()) return make_error(Code::kCorrupt, "a message key is cut short");
  if (kind < static_cast<uint8_t>(MessageKind::kActivation) ||
      kind > static_cast<uint8_t>(MessageKind::kClip)) {
    return make_error(Code::kCorrupt, fmt::format("unknown message kind {}", kind));
  }
  key.kind = static_cast<MessageKind>(kind);
  return key;
}

void write_keys(FieldWriter& out, const std::vector<MessageKey>& keys) {
  for (const MessageKey& key : keys) write_key(out, key);
}

// ---- one header writer and reader a type; the reader is told whether the header ended well ----

void write_header(FieldWriter& out, const HelloFrame& f) {
  out.text(f.job);
  out.number(f.epoch);
  out.number(f.stage);
  out.text(f.peer);
  out.number(f.edges);
  out.number(static_cast<uint32_t>(f.held.size()));
  out.number(static_cast<uint32_t>(f.consumed.size()));
  out.number(static_cast<uint32_t>(f.partial.size()));
}
void write_header(FieldWriter& out, const MessageFrame& f) {
  out.number(f.transfer);
  write_key(out, f.key);
  out.number(static_cast<uint8_t>(f.none));
  out.number(static_cast<uint8_t>(f.dtype));
  out.number(static_cast<uint8_t>(f.sizes.size()));
  for (int64_t size : f.sizes) out.number(size);
  for (int64_t stride : f.strides) out.number(stride);
  out.number(f.total_bytes);
  out.number(f.offset);
}
void write_header(FieldWriter& out, const ChunkFrame& f) {
  out.number(f.transfer);
  out.number(f.offset);
}
void write_header(FieldWriter& out, const AckFrame& f) {
  write_key(out, f.key);
  out.number(f.at_us);
}
void write_header(FieldWriter& out, const ConsumedFrame& f) {
  write_key(out, f.key);
}
void write_header(FieldWriter& out, const PingFrame& f) {
  out.number(f.number);
}
void write_header(FieldWriter& out, const PongFrame& f) {
  out.number(f.number);
  out.number(f.at_us);
}
void write_header(FieldWriter& out, const GoodbyeFrame& f) {
  out.number(static_cast<uint8_t>(f.reason));
  out.text(f.text.substr(0, kMaxReasonBytes));
}

void write_header(FieldWriter&, const PaddingFrame&) {}

FrameType type_of(const Frame& frame) {
  return static_cast<FrameType>(frame.index() + 1);
}

Result<Frame> read_hello(FieldReader& in, std::span<const std::byte> body) {
  HelloFrame f;
  f.job = in.text(kMaxNameBytes);
  f.epoch = in.number<uint32_t>();
  f.stage = in.number<int32_t>();
  f.peer = in.text(kMaxNameBytes);
  f.edges = in.number<uint64_t>();
  const auto held = in.number<uint32_t>();
  const auto consumed = in.number<uint32_t>();
  const auto partial = in.number<uint32_t>();
  const uint64_t announced =
      (uint64_t{held} + consumed) * kKeyBytes + uint64_t{partial} * kPartialBytes;
  if (announced != body.size()) {
    return make_error(Code::kCorrupt, fmt::format("a hello announces keys of {} bytes in {} bytes",
                                                  announced, body.size()));
  }
  FieldReader keys(body);
  for (uint32_t i = 0; i < held; ++i) {
    WEFT_TRY(MessageKey key, read_key(keys));
    f.held.push_back(key);
  }
  for (uint32_t i = 0; i < consumed; ++i) {
    WEFT_TRY(MessageKey key, read_key(keys));
    f.consumed.push_back(key);
  }
  for (uint32_t i = 0; i < partial; ++i) {
    WEFT_TRY(MessageKey key, read_key(keys));
    f.partial.push_back({key, keys.number<uint64_t>()});
  }
  return Frame(std::move(f));
}

Result<Frame> read_message(FieldReader& in) {
  MessageFrame f;
  f.transfer = in.number<uint64_t>();
  WEFT_TRY(f.key, read_key(in));
  const auto none = in.number<uint8_t>();
  const auto dtype = in.number<uint8_t>();
  const auto dimensions = in.number<uint8_t>();
  if (none > 1) return make_error(Code::kCorrupt, "a none flag is neither 0 nor 1");
  if (dtype > static_cast<uint8_t>(DType::kUint64)) {
    return make_error(Code::kCorrupt, fmt::format("unknown element type {}", dtype));
  }
  if (dimensions > kMaxDimensions) {
    return make_error(Code::kTooLarge, fmt::format("a tensor of {} dimensions, the limit is {}",
                                                   dimensions, kMaxDimensions));
  }
  f.none = none == 1;
  f.dtype = static_cast<DType>(dtype);
  for (int i = 0; i < dimensions; ++i) f.sizes.push_back(in.number<int64_t>());
  for (int i = 0; i < dimensions; ++i) f.strides.push_back(in.number<int64_t>());
  f.total_bytes = in.number<uint64_t>();
  f.offset = in.number<uint64_t>();
  if (!element_count(f.sizes)) {
    return make_error(Code::kCorrupt, "a tensor has a negative or overflowing size");
  }
  if (f.none && f.total_bytes != 0) {
    return make_error(Code::kCorrupt, "a message without a tensor announces bytes");
  }
  if (f.offset > f.total_bytes) {
    return make_error(Code::kCorrupt, "a message goes on behind its end");
  }
  return Frame(std::move(f));
}

Result<Frame> read_goodbye(FieldReader& in) {
  GoodbyeFrame f;
  const auto reason = in.number<uint8_t>();
  f.text = in.text(kMaxReasonBytes);
  if (reason < 1 || reason > static_cast<uint8_t>(GoodbyeReason::kFailed)) {
    return make_error(Code::kCorrupt, fmt::format("unknown goodbye reason {}", reason));
  }
  f.reason = static_cast<GoodbyeReason>(reason);
  return Frame(std::move(f));
}

Result<Frame> read_header(FrameType type, FieldReader& in, std::span<const std::byte> body) {
  switch (type) {
    case FrameType::kHello:
      return read_hello(in, body);
    case FrameType::kMessage:
      return read_message(in);
    case FrameType::kChunk: {
      const auto transfer = in.number<uint64_t>();
      return Frame(ChunkFrame{transfer, in.number<uint64_t>()});
    }
    case FrameType::kAck: {
      WEFT_TRY(MessageKey key, read_key(in));
      return Frame(AckFrame{key, in.number<int64_t>()});
    }
    case FrameType::kConsumed: {
      WEFT_TRY(MessageKey key, read_key(in));
      return Frame(ConsumedFrame{key});
    }
    case FrameType::kPing:
      return Frame(PingFrame{in.number<uint64_t>()});
    case FrameType::kPong: {
      const auto number = in.number<uint64_t>();
      return Frame(PongFrame{number, in.number<int64_t>()});
    }
    case FrameType::kGoodbye:
      return read_goodbye(in);
    case FrameType::kPadding:
      return Frame(PaddingFrame{});
  }
  return make_error(Code::kInternal, "unreachable frame type");
}

uint32_t max_body_bytes(FrameType type) {
  switch (type) {
    case FrameType::kHello:
      return kMaxHelloBytes;
    case FrameType::kMessage:
    case FrameType::kChunk:
    case FrameType::kPadding:
      return kMaxChunkBytes;
    default:
      return 0;
  }
}

// The checksum field itself is left out of what it covers. head: prefix and header.
uint64_t checksum(std::span<const std::byte> head, std::span<const std::byte> body) {
  const uint64_t prefix = xxh3(head.first(kCheckedPrefixBytes));
  const auto header = head.subspan(kPrefixBytes);
  if (body.empty()) return prefix ^ xxh3(header);
  if (head.data() + head.size() != body.data()) return prefix ^ xxh3(header, body);
  return prefix ^ xxh3({header.data(), header.size() + body.size()});
}

}  // namespace

void encode_head(const Frame& frame, std::span<const std::byte> body, std::vector<std::byte>& out) {
  const size_t start = out.size();
  out.resize(start + kPrefixBytes);
  FieldWriter writer(out);
  std::visit([&](const auto& f) { write_header(writer, f); }, frame);
  const std::span<std::byte> head = std::span(out).subspan(start);
  const size_t header_bytes = head.size() - kPrefixBytes;
  WEFT_CHECK(header_bytes <= kMaxHeaderBytes && body.size() <= max_body_bytes(type_of(frame)));
  const auto put = [&](size_t at, auto value) {
    std::memcpy(head.data() + at, &value, sizeof value);
  };
  put(0, kFrameMagic);
  put(4, kFrameVersion);
  put(5, static_cast<uint8_t>(type_of(frame)));
  put(6, static_cast<uint16_t>(header_bytes));
  put(8, static_cast<uint32_t>(body.size()));
  put(kCheckedPrefixBytes, checksum(head, body));
}

void encode_frame(const Frame& frame, std::span<const std::byte> body,
                  std::vector<std::byte>& out) {
  std::vector<std::byte> keys;
  if (const auto* hello = std::get_if<HelloFrame>(&frame)) {
    FieldWriter writer(keys);
    write_keys(writer, hello->held);
    write_keys(writer, hello->consumed);
    for (const PartialMessage& partial : hello->partial) {
      write_key(writer, partial.key);
      writer.number(partial.bytes);
    }
    body = keys;
  }
  encode_head(frame, body, out);
  FieldWriter(out).bytes(body);
}

Result<Prefix> decode_prefix(std::span<const std::byte> bytes) {
  WEFT_CHECK(bytes.size() == kPrefixBytes);
  FieldReader in(bytes);
  Prefix prefix;
  const auto magic = in.number<uint32_t>();
  const auto version = in.number<uint8_t>();
  const auto type = in.number<uint8_t>();
  prefix.header_bytes = in.number<uint16_t>();
  prefix.body_bytes = in.number<uint32_t>();
  prefix.checksum = in.number<uint64_t>();
  if (magic != kFrameMagic) return make_error(Code::kCorrupt, "not a weft data frame");
  if (version != kFrameVersion) {
    return make_error(
        Code::kRefused,
        fmt::format("frame version {}, this program speaks {}", version, kFrameVersion),
        "run the same version of weft on every peer");
  }
  if (type < 1 || type > static_cast<uint8_t>(FrameType::kPadding)) {
    return make_error(Code::kCorrupt, fmt::format("unknown frame type {}", type));
  }
  prefix.type = static_cast<FrameType>(type);
  if (prefix.header_bytes > kMaxHeaderBytes || prefix.body_bytes > max_body_bytes(prefix.type)) {
    return make_error(Code::kTooLarge, fmt::format("a frame of type {} with {} + {} bytes", type,
                                                   prefix.header_bytes, prefix.body_bytes));
  }
  return prefix;
}

Result<DecodedFrame> decode_frame(const Prefix& prefix, std::span<const std::byte> whole) {
  if (whole.size() != kPrefixBytes + prefix.rest_bytes()) {
    return make_error(Code::kCorrupt,
                      fmt::format("a frame of {} bytes where its prefix says {}", whole.size(),
                                  kPrefixBytes + prefix.rest_bytes()));
  }
  const size_t head_bytes = kPrefixBytes + prefix.header_bytes;
  return decode_frame(prefix, whole.first(head_bytes), whole.subspan(head_bytes));
}

Result<DecodedFrame> decode_frame(const Prefix& prefix, std::span<const std::byte> head,
                                  std::span<const std::byte> body) {
  WEFT_CHECK(head.size() == kPrefixBytes + prefix.header_bytes && body.size() == prefix.body_bytes);
  if (checksum(head, body) != prefix.checksum) {
    return make_error(Code::kCorrupt, "a frame's checksum does not match");
  }
  FieldReader header(head.subspan(kPrefixBytes));
  WEFT_TRY(Frame frame, read_header(prefix.type, header, body));
  if (!header.complete()) {
    return make_error(Code::kCorrupt,
                      fmt::format("the header of a frame of type {} has the wrong length",
                                  static_cast<int>(prefix.type)));
  }
  return DecodedFrame{std::move(frame), body};
}

std::optional<ChunkFrame> peek_chunk(const Prefix& prefix, std::span<const std::byte> head) {
  if (prefix.type != FrameType::kChunk || head.size() != kChunkOverheadBytes) return std::nullopt;
  FieldReader header(head.subspan(kPrefixBytes));
  const auto transfer = header.number<uint64_t>();
  return ChunkFrame{transfer, header.number<uint64_t>()};
}

size_t message_overhead_bytes(size_t dimensions) {
  return kPrefixBytes + kMessageFixedBytes + 16 * dimensions;
}

}  // namespace weft::net
