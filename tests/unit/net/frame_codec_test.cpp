// The frame codec: whatever is encoded decodes to itself; hostile bytes give errors.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>

#include "base/hash.h"
#include "net/frame/frame.h"

namespace weft::net {
namespace {

rc::Gen<MessageKey> any_key() {
  return rc::gen::build<MessageKey>(
      rc::gen::set(&MessageKey::epoch), rc::gen::set(&MessageKey::step),
      rc::gen::set(&MessageKey::micro_batch), rc::gen::set(&MessageKey::edge),
      rc::gen::set(
          &MessageKey::kind,
          rc::gen::map(rc::gen::inRange(1, 8), [](int k) { return static_cast<MessageKind>(k); })),
      rc::gen::set(&MessageKey::from));
}

std::vector<std::byte> random_bytes(size_t size) {
  const auto numbers =
      *rc::gen::container<std::vector<uint8_t>>(size, rc::gen::arbitrary<uint8_t>());
  std::vector<std::byte> bytes;
  for (uint8_t n : numbers) bytes.push_back(static_cast<std::byte>(n));
  return bytes;
}

std::string name() {
  return *rc::gen::resize(30, rc::gen::string<std::string>());
}

Frame any_frame(std::vector<std::byte>& body) {
  switch (*rc::gen::inRange(0, 9)) {
    case 0: {
      HelloFrame f{name(),
                   *rc::gen::arbitrary<uint32_t>(),
                   *rc::gen::arbitrary<int32_t>(),
                   name(),
                   *rc::gen::arbitrary<uint64_t>(),
                   *rc::gen::container<std::vector<MessageKey>>(any_key()),
                   *rc::gen::container<std::vector<MessageKey>>(any_key()),
                   {}};
      for (int i = *rc::gen::inRange(0, 4); i > 0; --i) {
        f.partial.push_back({*any_key(), *rc::gen::arbitrary<uint64_t>()});
      }
      return f;
    }
    case 1: {
      MessageFrame f;
      f.transfer = *rc::gen::arbitrary<uint64_t>();
      f.key = *any_key();
      f.dtype = static_cast<DType>(*rc::gen::inRange(0, 15));
      const auto dimensions = *rc::gen::inRange<size_t>(0, kMaxDimensions + 1);
      f.sizes =
          *rc::gen::container<std::vector<int64_t>>(dimensions, rc::gen::inRange<int64_t>(0, 9));
      f.strides =
          *rc::gen::container<std::vector<int64_t>>(dimensions, rc::gen::arbitrary<int64_t>());
      f.total_bytes = *rc::gen::arbitrary<uint64_t>();
      f.offset = f.total_bytes / 2;
      body = random_bytes(*rc::gen::inRange<size_t>(0, 300));
      return f;
    }
    case 2:
      body = random_bytes(*rc::gen::inRange<size_t>(0, 300));
      return ChunkFrame{*rc::gen::arbitrary<uint64_t>(), *rc::gen::arbitrary<uint64_t>()};
    case 3:
      return AckFrame{*any_key(), *rc::gen::arbitrary<int64_t>()};
    case 4:
      return ConsumedFrame{*any_key()};
    case 5:
      return PingFrame{*rc::gen::arbitrary<uint64_t>()};
    case 6:
      return PongFrame{*rc::gen::arbitrary<uint64_t>(), *rc::gen::arbitrary<int64_t>()};
    case 7:
      body = random_bytes(*rc::gen::inRange<size_t>(0, 300));
      return PaddingFrame{};
    default:
      return GoodbyeFrame{static_cast<GoodbyeReason>(*rc::gen::inRange(1, 5)), name()};
  }
}

Result<DecodedFrame> decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kPrefixBytes) return make_error(Code::kCorrupt, "short");
  WEFT_TRY(Prefix prefix, decode_prefix(bytes.first(kPrefixBytes)));
  return decode_frame(prefix, bytes);
}

RC_GTEST_PROP(FrameCodec, RoundTrip, ()) {
  std::vector<std::byte> body, out;
  const Frame frame = any_frame(body);
  encode_frame(frame, body, out);
  const auto decoded = decode(out);
  RC_ASSERT(decoded.ok());
  RC_ASSERT(decoded->frame == frame);
  if (!std::holds_alternative<HelloFrame>(frame)) {
    RC_ASSERT(std::equal(body.begin(), body.end(), decoded->body.begin(), decoded->body.end()));
  }
}

// A body put elsewhere, as into the message it belongs to, is checked as one that follows its head.
RC_GTEST_PROP(FrameCodec, HeadAndBodyMayLieApart, ()) {
  std::vector<std::byte> body, out;
  const Frame frame = any_frame(body);
  encode_frame(frame, body, out);
  const auto prefix = decode_prefix(std::span(out).first(kPrefixBytes));
  RC_ASSERT(prefix.ok());
  const size_t head_bytes = kPrefixBytes + prefix->header_bytes;
  std::vector<std::byte> head(out.begin(), out.begin() + static_cast<ptrdiff_t>(head_bytes));
  std::vector<std::byte> apart(out.begin() + static_cast<ptrdiff_t>(head_bytes), out.end());
  if (!std::holds_alternative<HelloFrame>(frame)) {
    std::vector<std::byte> alone;
    encode_head(frame, body, alone);
    RC_ASSERT(alone == head);
  }
  const auto peeked = peek_chunk(*prefix, head);
  RC_ASSERT(peeked.has_value() == std::holds_alternative<ChunkFrame>(frame));
  if (peeked) RC_ASSERT(*peeked == std::get<ChunkFrame>(frame));
  const auto decoded = decode_frame(*prefix, head, apart);
  RC_ASSERT(decoded.ok());
  RC_ASSERT(decoded->frame == frame);
  RC_ASSERT(decoded->body.data() == apart.data());
  if (apart.empty()) return;
  apart[*rc::gen::inRange<size_t>(0, apart.size())] ^= std::byte{4};
  RC_ASSERT(!decode_frame(*prefix, head, apart).ok());
}

TEST(FrameCodec, AHeadOfTheWrongLengthIsNotPeekedAt) {
  Prefix prefix;
  prefix.type = FrameType::kChunk;
  EXPECT_FALSE(peek_chunk(prefix, std::vector<std::byte>(kChunkOverheadBytes - 1)));
  EXPECT_FALSE(peek_chunk(prefix, std::vector<std::byte>(kChunkOverheadBytes + 1)));
}

RC_GTEST_PROP(FrameCodec, OneFlippedBitIsNoticed, ()) {
  std::vector<std::byte> body, out;
  const Frame frame = any_frame(body);
  encode_frame(frame, body, out);
  const auto at = *rc::gen::inRange<size_t>(0, out.size());
  out[at] ^= static_cast<std::byte>(1 << *rc::gen::inRange(0, 8));
  RC_ASSERT(!decode(out).ok());
}

RC_GTEST_PROP(FrameCodec, TruncatedIsNoticed, ()) {
  std::vector<std::byte> body, out;
  encode_frame(any_frame(body), body, out);
  out.resize(*rc::gen::inRange<size_t>(0, out.size()));
  RC_ASSERT(!decode(out).ok());
}

RC_GTEST_PROP(FrameCodec, GarbageNeverCrashes, ()) {
  const auto bytes = random_bytes(*rc::gen::inRange<size_t>(kPrefixBytes, 600));
  RC_ASSERT(!decode(bytes).ok());
}

// A liar with a correct checksum: the header itself must be checked.
RC_GTEST_PROP(FrameCodec, HostileHeadersNeverCrash, ()) {
  const auto header = random_bytes(*rc::gen::inRange<size_t>(0, kMaxHeaderBytes));
  Prefix prefix;
  prefix.type = static_cast<FrameType>(*rc::gen::inRange(1, 9));
  prefix.header_bytes = static_cast<uint16_t>(header.size());
  std::vector<std::byte> whole(kPrefixBytes);
  whole.insert(whole.end(), header.begin(), header.end());
  prefix.checksum = xxh3(std::span(whole).first(12)) ^ xxh3(header);
  (void)decode_frame(prefix, whole);
}

TEST(FrameCodec, LengthsAreBoundedBeforeAnythingIsRead) {
  std::vector<std::byte> out;
  encode_frame(ChunkFrame{1, 0}, std::vector<std::byte>(10), out);
  const uint32_t huge = kMaxChunkBytes + 1;
  std::memcpy(out.data() + 8, &huge, 4);
  const auto prefix = decode_prefix(std::span(out).first(kPrefixBytes));
  ASSERT_FALSE(prefix.ok());
  EXPECT_EQ(prefix.error().code, Code::kTooLarge);
}

TEST(FrameCodec, AnotherVersionIsNamed) {
  std::vector<std::byte> out;
  encode_frame(PingFrame{1}, {}, out);
  out[4] = std::byte{9};
  const auto prefix = decode_prefix(std::span(out).first(kPrefixBytes));
  ASSERT_FALSE(prefix.ok());
  EXPECT_EQ(prefix.error().code, Code::kRefused);
  EXPECT_NE(prefix.error().message.find('9'), std::string::npos);
}

// The layout is a contract between versions: these bytes are docs/wire.md's example.
TEST(FrameCodec, GoldenPing) {
  std::vector<std::byte> out;
  encode_frame(PingFrame{0x0102030405060708}, {}, out);
  ASSERT_EQ(out.size(), kPrefixBytes + 8);
  const uint8_t expected[12] = {0x57, 0x46, 0x54, 0x31, 4, 6, 8, 0, 0, 0, 0, 0};
  EXPECT_EQ(std::memcmp(out.data(), expected, sizeof expected), 0);
  EXPECT_EQ(out[kPrefixBytes], std::byte{8});
}

}  // namespace
}  // namespace weft::net
