// Messages for the tests of every endpoint back end.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "net/endpoint.h"

namespace weft::net::testing {

inline MessageKey make_key(MessageKind kind, int32_t from, uint32_t edge, uint64_t step,
                           uint32_t micro_batch) {
  MessageKey key;
  key.epoch = 1;
  key.step = step;
  key.micro_batch = micro_batch;
  key.edge = edge;
  key.kind = kind;
  key.from = from;
  return key;
}

inline std::vector<std::byte> pattern(const MessageKey& key, size_t size) {
  Rng rng(derive_seed({key.step, key.micro_batch, key.edge, static_cast<uint64_t>(key.kind)}));
  std::vector<std::byte> bytes(size);
  for (auto& b : bytes) b = static_cast<std::byte>(rng.next());
  return bytes;
}

inline Message make_message(const MessageKey& key, size_t size) {
  Message message;
  message.key = key;
  message.dtype = DType::kUint8;
  message.sizes = {static_cast<int64_t>(size)};
  message.strides = {1};
  message.bytes = Buffer(pattern(key, size));
  return message;
}

// Waits for one message and checks its content.
inline ::testing::AssertionResult receive(Endpoint& endpoint, const MessageKey& key, size_t size,
                                          int32_t timeout_ms = 10000) {
  for (int attempt = 0; attempt < 10000; ++attempt) {
    if (auto message = endpoint.take(key)) {
      const auto bytes = message->bytes.bytes();
      const auto expected = pattern(key, size);
      if (!std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end())) {
        return ::testing::AssertionFailure() << key.text() << " differs";
      }
      return ::testing::AssertionSuccess();
    }
    if (auto status = endpoint.wait(timeout_ms); !status.ok()) {
      return ::testing::AssertionFailure() << key.text() << ": " << status.error().text();
    }
  }
  return ::testing::AssertionFailure() << key.text() << " never arrived";
}

}  // namespace weft::net::testing
