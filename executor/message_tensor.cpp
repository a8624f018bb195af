#include "executor/message_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "executor/convert.h"

namespace weft::executor {
namespace {

using Dims = std::vector<int64_t>;

// Sizes without repetition: expanded dimensions hold one element.
Dims stored_sizes(const Dims& sizes, const Dims& strides) {
  Dims result = sizes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] == 0 && sizes[i] > 1) result[i] = 1;
  }
  return result;
}

bool is_dense(const Dims& sizes, const Dims& strides) {
  std::vector<size_t> order;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t expected = 1;
  for (size_t i : order) {
    if (strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

int64_t count(const Dims& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

struct Wire {
  at::Tensor tensor;  // dense, on the sender's device: its bytes are what travels
  Dims sizes, strides;
  DType dtype;
};

Result<Wire> to_wire(const at::Tensor& source) {
  const at::NoGradGuard guard;
  at::Tensor tensor = source.detach().resolve_conj().resolve_neg();
  // Some backward formulas give a zero that has a shape and no memory.
  if (tensor._is_zerotensor()) tensor = tensor.clone();
  WEFT_TRY(const DType dtype, from_scalar_type(tensor.scalar_type()));
  Wire wire{{}, tensor.sizes().vec(), tensor.strides().vec(), dtype};
  const Dims stored = stored_sizes(wire.sizes, wire.strides);
  if (stored != wire.sizes) tensor = tensor.as_strided(stored, wire.strides);
  if (!is_dense(stored, wire.strides)) tensor = tensor.contiguous();
  wire.tensor = tensor;
  return wire;
}

Buffer bytes_of(const at::Tensor& host) {
  auto owner = std::make_shared<at::Tensor>(host);
  return Buffer(owner, owner->const_data_ptr(), owner->nbytes());
}

Error bad_message(const net::MessageKey& key, const std::string& what) {
  return make_error(Code::kCorrupt, fmt::format("{}: {}", key.text(), what),
                    "all stages must run the same version of weft on the same plan");
}

// sizes are the expected ones already; strides and the number of bytes are the sender's.
Result<at::Tensor> from_wire(const net::MessageKey& key, const Dims& sizes, const Dims& strides,
                             DType dtype, std::span<const std::byte> bytes, int64_t known_elements,
                             Transfer& transfer) {
  if (strides.size() != sizes.size()) return bad_message(key, "as many strides as sizes needed");
  const Dims stored = stored_sizes(sizes, strides);
  const int64_t elements = count(stored);
  const int64_t limit = 4 * std::max(count(sizes), known_elements) + 4096;
  int64_t extent = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] < 0 || strides[i] > limit) {
      return bad_message(key, fmt::format("stride {} is out of bounds", strides[i]));
    }
    if (stored[i] > 0) extent += (stored[i] - 1) * strides[i];
    if (extent > limit) return bad_message(key, "strides reach too far");
  }
  if (bytes.size() != static_cast<size_t>(elements) * dtype_bytes(dtype)) {
    return bad_message(key, fmt::format("{} bytes for {} elements of {}", bytes.size(), elements,
                                        dtype_name(dtype)));
  }
  const at::NoGradGuard guard;
  const at::Tensor memory = transfer.host_bytes(static_cast<int64_t>(bytes.size()));
  if (!bytes.empty()) std::memcpy(memory.mutable_data_ptr(), bytes.data(), bytes.size());
  const at::Tensor elements_row = memory.view(to_scalar_type(dtype));
  if (is_dense(stored, strides)) {
    const at::Tensor tensor = transfer.to_device(elements_row.as_strided(stored, strides));
    return stored == sizes ? tensor : tensor.as_strided(sizes, strides);
  }
  const at::Tensor rows = transfer.to_device(elements_row.view(stored));
  const at::Tensor tensor = at::empty_strided(stored, strides, rows.options()).copy_(rows);
  return stored == sizes ? tensor : tensor.as_strided(sizes, strides);
}

bool dtype_fits(DType dtype, const ExpectedTensor& expected) {
  return dtype == expected.dtype ||
         (expected.any_float && dtype_is_floating(dtype) && dtype_is_floating(expected.dtype));
}

template <typename T>
void append(std::vector<std::byte>& out, const T& value) {
  const auto* data = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), data, data + sizeof(T));
}

struct BundlePart {
  std::vector<std::byte> head;
  at::Tensor row;  // of bytes, on the sender's device
  int64_t bytes() const { return static_cast<int64_t>(head.size()) + row.numel(); }
};

Result<BundlePart> bundle_part(const std::optional<at::Tensor>& tensor) {
  BundlePart part;
  append(part.head, static_cast<uint8_t>(tensor.has_value()));
  if (!tensor) {
    append(part.head, uint8_t{0});
    part.row = at::empty({0}, at::kByte);
    return part;
  }
  WEFT_TRY(const Wire wire, to_wire(*tensor));
  append(part.head, static_cast<uint8_t>(wire.dtype));
  for (int64_t stride : wire.strides) append(part.head, stride);
  part.row = byte_row(wire.tensor);
  return part;
}

// Cursor over a received bundle; every read is checked.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  std::optional<T> read() {
    if (bytes_.size() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  std::optional<std::span<const std::byte>> take(size_t size) {
    if (bytes_.size() < size) return std::nullopt;
    const auto result = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return result;
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

Result<std::optional<at::Tensor>> read_part(Reader& reader, const net::MessageKey& key,
                                            const ExpectedTensor& expected, Transfer& transfer) {
  const auto present = reader.read<uint8_t>();
  const auto dtype = reader.read<uint8_t>();
  if (!present || !dtype) return bad_message(key, "bundle is too short");
  if (*present == 0) return std::optional<at::Tensor>();
  if (*dtype > static_cast<uint8_t>(DType::kUint64) ||
      !dtype_fits(static_cast<DType>(*dtype), expected)) {
    return bad_message(key, fmt::format("element type {} is not the expected {}", *dtype,
                                        dtype_name(expected.dtype)));
  }
  Dims strides;
  for (size_t i = 0; i < expected.sizes.size(); ++i) {
    const auto stride = reader.read<int64_t>();
    if (!stride) return bad_message(key, "bundle is too short");
    strides.push_back(*stride);
  }
  const auto type = static_cast<DType>(*dtype);
  const auto elements = static_cast<size_t>(count(stored_sizes(expected.sizes, strides)));
  const auto bytes = reader.take(elements * dtype_bytes(type));
  if (!bytes) return bad_message(key, "bundle is too short");
  WEFT_TRY(at::Tensor tensor, from_wire(key, expected.sizes, strides, type, *bytes,
                                        expected.storage_elements, transfer));
  return std::optional<at::Tensor>(std::move(tensor));
}

}  // namespace

ExpectedTensor expected_tensor(const opdag::TensorMeta& meta, bool any_float) {
  ExpectedTensor expected{meta.sizes, meta.dtype, any_float, 1};
  for (size_t i = 0; i < meta.sizes.size() && i < meta.strides.size(); ++i) {
    if (meta.sizes[i] > 0) expected.storage_elements += (meta.sizes[i] - 1) * meta.strides[i];
  }
  return expected;
}

Result<net::Message> encode_tensor(const net::MessageKey& key, const at::Tensor& tensor,
                                   Transfer& transfer) {
  try {
    WEFT_TRY(Wire wire, to_wire(tensor));
    net::Message message;
    message.key = key;
    message.dtype = wire.dtype;
    message.sizes = wire.sizes;
    message.strides = wire.strides;
    message.bytes = bytes_of(transfer.to_host(wire.tensor));
    return message;
  } catch (const std::exception& error) {
    return make_error(Code::kInternal,
                      fmt::format("sending {}: {}", key.text(), exception_text(error)));
  }
}

net::Message encode_none(const net::MessageKey& key) {
  net::Message message;
  message.key = key;
  message.none = true;
  return message;
}

Result<net::Message> encode_bundle(const net::MessageKey& key, const OptionalTensors& tensors,
                                   Transfer& transfer) {
  const bool any = std::any_of(tensors.begin(), tensors.end(),
                               [](const auto& tensor) { return tensor.has_value(); });
  if (!any) return encode_none(key);
  if (tensors.size() == 1) return encode_tensor(key, *tensors[0], transfer);
  try {
    std::vector<BundlePart> parts;
    int64_t size = 0;
    for (const auto& tensor : tensors) {
      WEFT_TRY(parts.emplace_back(), bundle_part(tensor));
      size += parts.back().bytes();
    }
    const at::NoGradGuard guard;
    const at::Tensor host = transfer.host_bytes(size);
    int64_t at = 0;
    for (const BundlePart& part : parts) {
      std::memcpy(host.mutable_data_ptr<uint8_t>() + at, part.head.data(), part.head.size());
      at += static_cast<int64_t>(part.head.size());
      transfer.copy_to_host(part.row, host.slice(0, at, at + part.row.numel()));
      at += part.row.numel();
    }
    net::Message message;
    message.key = key;
    message.dtype = DType::kUint8;
    message.sizes = {size};
    message.strides = {1};
    message.bytes = bytes_of(host);
    return message;
  } catch (const std::exception& error) {
    return make_error(Code::kInternal,
                      fmt::format("sending {}: {}", key.text(), exception_text(error)));
  }
}

Result<std::optional<at::Tensor>> decode_tensor(const net::Message& message,
                                                const ExpectedTensor& expected,
                                                Transfer& transfer) {
  if (message.none) return std::optional<at::Tensor>();
  if (message.sizes != expected.sizes) {
    return bad_message(
        message.key, fmt::format("shape [{}] is not the expected [{}]",
                                 fmt::join(message.sizes, ", "), fmt::join(expected.sizes, ", ")));
  }
  if (!dtype_fits(message.dtype, expected)) {
    return bad_message(message.key,
                       fmt::format("element type {} is not the expected {}",
                                   dtype_name(message.dtype), dtype_name(expected.dtype)));
  }
  try {
    WEFT_TRY(at::Tensor tensor,
             from_wire(message.key, message.sizes, message.strides, message.dtype,
                       message.bytes.bytes(), expected.storage_elements, transfer));
    return std::optional<at::Tensor>(std::move(tensor));
  } catch (const std::exception& error) {
    return bad_message(message.key, exception_text(error));
  }
}

Result<OptionalTensors> decode_bundle(const net::Message& message, size_t count,
                                      const ExpectedTensor& expected, Transfer& transfer) {
  OptionalTensors result(count);
  if (message.none) return result;
  if (count == 1) {
    WEFT_TRY(result[0], decode_tensor(message, expected, transfer));
    return result;
  }
  if (message.dtype != DType::kUint8) return bad_message(message.key, "a bundle was expected");
  try {
    Reader reader(message.bytes.bytes());
    for (auto& tensor : result) {
      WEFT_TRY(tensor, read_part(reader, message.key, expected, transfer));
    }
    if (!reader.at_end()) return bad_message(message.key, "bundle is too long");
    return result;
  } catch (const std::exception& error) {
    return bad_message(message.key, exception_text(error));
  }
}

}  // namespace weft::executor
