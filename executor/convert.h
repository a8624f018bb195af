// Between weft's vocabulary and ATen's: element types, and the arguments of a graph node as boxed
// IValues in the order of the operator's schema. Compile-time work: a Program calls this once per
// node and only fills in tensors afterwards. Exceptions of libtorch do not leave these functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "executor/aten.h"
#include "job/spec.h"
#include "opdag/graph.h"

namespace weft::executor {

at::ScalarType to_scalar_type(DType dtype);
// kRefused for element types weft does not carry (quantised, float8).
Result<DType> from_scalar_type(at::ScalarType type);

// What autocast computes in under a precision, if it is on.
std::optional<at::ScalarType> autocast_type(job::Precision precision);

// "cpu" or "cuda:N"; kInvalid for anything else, kUnavailable where no such card is present.
Result<at::Device> parse_device(const std::string& device);

// One argument of a compiled call: a constant, or what is read from the frame when it runs.
struct ArgTemplate {
  enum class Kind : uint8_t { kConstant, kSlot, kTensorList, kOptionalTensorList, kIntList };
  Kind kind = Kind::kConstant;
  at::IValue constant;
  std::vector<int32_t> slots;     // kSlot: one; lists: one an item, kNone for a literal or "absent"
  std::vector<int64_t> literals;  // kIntList: used where the slot is kNone
};

// Which frame slot holds a value for the node being compiled.
using SlotOf = std::function<Result<int32_t>(opdag::ValueId)>;

// The operator of a node, found in the dispatcher by name and overload.
Result<c10::OperatorHandle> find_operator(const opdag::Node& node);

// Arguments in schema order: named by the node or schema defaults. A number where the schema wants
// a Tensor becomes a wrapped-number scalar; device arguments become `device`, also where the
// export left the default of an operator that creates tensors from nothing.
Result<std::vector<ArgTemplate>> compile_arguments(const opdag::Node& node,
                                                   const c10::OperatorHandle& handle,
                                                   at::Device device, const SlotOf& slot_of);

// The argument's value for this call.
at::IValue materialize(const ArgTemplate& argument, const std::vector<at::IValue>& frame);

// First line of a libtorch exception, without its C++ backtrace.
std::string exception_text(const std::exception& error);

}  // namespace weft::executor
