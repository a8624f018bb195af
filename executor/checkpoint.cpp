#include "executor/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "executor/convert.h"
#include "job/safetensors.h"

namespace weft::executor {
namespace {

constexpr std::string_view kPrefix = "shard-";
constexpr std::string_view kSuffix = ".safetensors";

Result<job::TensorView> view_of(const std::string& name, const at::Tensor& tensor) {
  auto dtype = from_scalar_type(tensor.scalar_type());
  if (!dtype) return std::move(dtype).error().within(fmt::format("tensor {}", name));
  auto owner = std::make_shared<at::Tensor>(tensor.detach().to(at::kCPU).contiguous());
  job::TensorView view;
  view.dtype = *dtype;
  view.sizes = owner->sizes().vec();
  const void* data = owner->const_data_ptr();
  const size_t bytes = owner->nbytes();
  view.bytes = Buffer(std::move(owner), data, bytes);
  return view;
}

Result<at::Tensor> tensor_of(const std::string& name, const job::TensorView& view) {
  const auto elements = element_count(view.sizes);
  if (!elements || view.bytes.size() != static_cast<size_t>(*elements) * dtype_bytes(view.dtype)) {
    return make_error(Code::kCorrupt, fmt::format("tensor {} does not fill its shape", name));
  }
  const auto options = at::TensorOptions().dtype(to_scalar_type(view.dtype));
  if (*elements == 0) return at::empty(view.sizes, options);
  const Buffer keep = view.bytes;
  const size_t alignment = std::min<size_t>(dtype_bytes(view.dtype), alignof(double));
  if (reinterpret_cast<uintptr_t>(keep.data()) % alignment != 0) {
    at::Tensor copy = at::empty(view.sizes, options);
    std::memcpy(copy.mutable_data_ptr(), keep.data(), keep.size());
    return copy;
  }
  return at::from_blob(
      const_cast<std::byte*>(keep.data()), view.sizes, [keep](void*) {}, options);
}

Result<std::map<std::string, at::Tensor>> tensors_of(const job::Safetensors& content) {
  try {
    std::map<std::string, at::Tensor> result;
    for (const auto& [name, view] : content.tensors) {
      WEFT_TRY(result[name], tensor_of(name, view));
    }
    return result;
  } catch (const std::exception& error) {
    return make_error(Code::kInternal, exception_text(error));
  }
}

Status check_origin(const os::Path& path, const job::Safetensors& content, const std::string& job,
                    int64_t step) {
  const auto metadata = [&](const char* key) {
    const auto found = content.metadata.find(key);
    return found == content.metadata.end() ? std::string("(none)") : found->second;
  };
  if (metadata("job") != job || metadata("step") != std::to_string(step)) {
    return make_error(Code::kInvalid,
                      fmt::format("shard {} is of job {} step {}, not of job {} step {}",
                                  path.string(), metadata("job"), metadata("step"), job, step),
                      "resume from the shards of one checkpoint");
  }
  return {};
}

}  // namespace

std::string shard_name(const ShardInfo& info) {
  return fmt::format("{}{}-{}{}", kPrefix, info.step, info.stage, kSuffix);
}

Status write_shard(const os::Path& path, const std::map<std::string, at::Tensor>& state,
                   const ShardInfo& info) {
  try {
    job::Safetensors content;
    for (const auto& [name, tensor] : state) {
      WEFT_TRY(content.tensors[name], view_of(name, tensor));
    }
    content.metadata = {{"format", "pt"},
                        {"job", info.job},
                        {"epoch", std::to_string(info.epoch)},
                        {"stage", std::to_string(info.stage)},
                        {"step", std::to_string(info.step)}};
    return job::write_safetensors(path, content);
  } catch (const std::exception& error) {
    return make_error(Code::kInternal,
                      fmt::format("writing shard {}: {}", path.string(), exception_text(error)));
  }
}

Result<std::map<std::string, at::Tensor>> read_tensors(const os::Path& path) {
  WEFT_TRY(const auto content, job::read_safetensors(path));
  return tensors_of(content);
}

Result<std::map<std::string, at::Tensor>> read_shards(const std::vector<os::Path>& paths,
                                                      const std::string& job, int64_t step) {
  std::map<std::string, at::Tensor> result;
  for (const os::Path& path : paths) {
    WEFT_TRY(const auto content, job::read_safetensors(path));
    WEFT_TRY_STATUS(check_origin(path, content, job, step));
    WEFT_TRY(auto tensors, tensors_of(content));
    for (auto& [name, tensor] : tensors) {
      const auto [kept, inserted] = result.emplace(name, tensor);
      if (inserted) continue;
      if (kept->second.sizes() != tensor.sizes() ||
          kept->second.scalar_type() != tensor.scalar_type()) {
        return make_error(
            Code::kCorrupt,
            fmt::format("tensor {} has two shapes or dtypes in the shards of step {}", name, step),
            "resume from another checkpoint");
      }
    }
  }
  return result;
}

}  // namespace weft::executor
