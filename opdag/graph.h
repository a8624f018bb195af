// Graph: a model as data. Nodes are ATen operators by name; values are tensors (or lists, symbolic
// scalars) that flow between them; parameters, buffers, constants and user inputs are its leaves.
//
// A graph is plain data: built by the .pt2 importer (or parsed from its text or wire form),
// validated once, then only read. Node ids are stable for life: a cut, a seed or a log line that
// names node 17 means the same operator in every process. Copies are deep.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace weft::opdag {

using NodeId = int32_t;
using ValueId = int32_t;
inline constexpr int32_t kNone = -1;

struct TensorMeta {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t storage_offset = 0;
  std::string device = "cpu";  // as exported; the executor maps it to its own device

  bool operator==(const TensorMeta&) const = default;
};
int64_t meta_bytes(const TensorMeta& meta);  // elements x element size

enum class ValueKind : uint8_t { kTensor, kTensorList, kInt, kFloat, kBool };

struct Value {
  ValueId id = kNone;
  std::string name;  // as in the export: "linear_3"
  ValueKind kind = ValueKind::kTensor;
  TensorMeta meta;  // of a tensor
  // Of a tensor list made by one node (split, unbind): its parts, each a tensor value of its own
  // that consumers read; kNone for a part nobody names. Parts share the list's producer and
  // producer_output, and do not stand in Node::outputs themselves.
  std::vector<ValueId> elements;
  NodeId producer = kNone;        // kNone for a leaf, and for a value pruned away
  int32_t producer_output = 0;    // position among the producer's outputs
  std::vector<NodeId> consumers;  // ascending, each once

  bool operator==(const Value&) const = default;
};

// ---- arguments -------------------------------------------------------------------------------

struct NoneArg {
  bool operator==(const NoneArg&) const = default;
};
struct ValueArg {
  ValueId id;
  bool operator==(const ValueArg&) const = default;
};
// A list of tensors; kNone stands for an absent optional tensor.
struct ValueListArg {
  std::vector<ValueId> ids;
  bool operator==(const ValueListArg&) const = default;
};
struct DTypeArg {
  DType dtype;
  bool operator==(const DTypeArg&) const = default;
};
struct DeviceArg {
  std::string device;
  bool operator==(const DeviceArg&) const = default;
};
// "strided"
struct LayoutArg {
  std::string layout;
  bool operator==(const LayoutArg&) const = default;
};
// "contiguous_format", "channels_last", "channels_last_3d", "preserve_format"
struct MemoryFormatArg {
  std::string format;
  bool operator==(const MemoryFormatArg&) const = default;
};
// Integers of a list where some are values of the graph (symbolic sizes): id or literal.
struct IntOrValue {
  int64_t literal = 0;
  ValueId id = kNone;
  bool operator==(const IntOrValue&) const = default;
};
struct IntListArg {
  std::vector<IntOrValue> items;
  bool operator==(const IntListArg&) const = default;
};
struct FloatListArg {
  std::vector<double> items;
  bool operator==(const FloatListArg&) const = default;
};
struct BoolListArg {
  std::vector<bool> items;
  bool operator==(const BoolListArg&) const = default;
};
struct ComplexArg {
  double real, imag;
  bool operator==(const ComplexArg&) const = default;
};

using Argument = std::variant<NoneArg, ValueArg, ValueListArg, int64_t, double, bool, std::string,
                              DTypeArg, DeviceArg, LayoutArg, MemoryFormatArg, IntListArg,
                              FloatListArg, BoolListArg, ComplexArg>;

struct NamedArgument {
  std::string name;  // as in the operator's schema
  Argument value;
  bool operator==(const NamedArgument&) const = default;
};

struct Node {
  NodeId id = kNone;
  std::string
      op;  // "aten::add.Tensor"; the default overload is written without a suffix: "aten::linear"
  std::vector<NamedArgument> arguments;  // those the export names; the rest take schema defaults
  std::vector<ValueId> outputs;          // kNone for an output nobody names
  int32_t atomic_group = kNone;          // nodes of one group never part (unproven aliasing)

  const Argument* find(std::string_view name) const;
  bool operator==(const Node&) const = default;
};

// Every value id an argument list reads, in order of appearance; repeats kept.
std::vector<ValueId> inputs_of(const Node& node);

// ---- leaves and outputs ----------------------------------------------------------------------

// Where the bytes of a leaf come from: a file of the archive, or a blob by the same name. Two
// leaves with equal refs are tied.
struct WeightRef {
  std::string path;    // inside the archive, "data/weights/weight_3"
  uint64_t bytes = 0;  // size of the whole file
  DType stored_dtype = DType::kFloat32;
  std::vector<int64_t> sizes, strides;
  int64_t storage_offset = 0;  // elements
  bool operator==(const WeightRef&) const = default;
};

enum class LeafKind : uint8_t { kParameter, kBuffer, kConstant, kUserInput };

struct Leaf {
  LeafKind kind = LeafKind::kParameter;
  ValueId value = kNone;
  std::string target;          // original name: "transformer.wte.weight"; for a user input its name
  WeightRef weight;            // not for user inputs
  bool persistent = true;      // of buffers: part of the state dict
  bool trainable = false;      // of parameters: requires_grad in the export
  int32_t tied_group = kNone;  // of parameters: leaves with equal weight refs share a group
  bool operator==(const Leaf&) const = default;
};

// A node output that replaces the content of a buffer (or of a constant the model writes to) after
// each training forward.
struct BufferUpdate {
  std::string target;  // the buffer's original name
  ValueId value = kNone;
  bool operator==(const BufferUpdate&) const = default;
};

struct Output {
  std::string name;  // "loss", "logits" or "out.0" where the export gives none
  ValueId value = kNone;
  bool operator==(const Output&) const = default;
};

struct Graph {
  std::vector<Node> nodes;    // topological order; nodes[i].id need not equal i after pruning
  std::vector<Value> values;  // values[i].id == i
  std::vector<Leaf> leaves;   // parameters, buffers, constants, user inputs, in export order
  std::vector<Output> outputs;
  std::vector<BufferUpdate> buffer_updates;
  int32_t loss_output = kNone;         // index into outputs: the scalar that is trained on, if any
  bool train_mode = true;              // false: exported in eval mode (a warning when trained)
  std::vector<std::string> warnings;   // import remarks a user should see
  std::vector<int32_t> index_of_node;  // derived: position of each node id, kNone for a free id

  const Value& value(ValueId id) const { return values.at(static_cast<size_t>(id)); }
  const Leaf* leaf_of(ValueId id) const;
  const Leaf* find_leaf(std::string_view target) const;
  // Index into nodes of a node id, kNone if there is none; O(1) after validate.
  int32_t node_index(NodeId id) const;
  bool operator==(const Graph&) const = default;
};

// Every value a node makes, parts of lists behind the list.
std::vector<ValueId> outputs_of(const Graph& graph, const Node& node);

// Checks every rule a graph must obey (ids in range, topological order, consumers consistent,
// shapes sane, weight refs inside their files) and fills derived fields (consumers, producers).
// A graph from outside passes here before anything else looks at it.
Status validate(Graph& graph);

// The same without the operator table: what `weft model inspect` needs to list refused operators.
Status validate_structure(Graph& graph);

// Elements from the first to the last one a strided tensor touches (0 when it is empty); nullopt
// for negative or overflowing numbers.
std::optional<int64_t> strided_extent(const std::vector<int64_t>& sizes,
                                      const std::vector<int64_t>& strides);

// Bounds a graph from outside has to keep.
inline constexpr int32_t kMaxNodes = 1 << 20;  // ids are below 4 x this
inline constexpr int32_t kMaxValues = 1 << 22;
inline constexpr size_t kMaxDimensions = 25;  // as PyTorch's TensorIterator
inline constexpr size_t kMaxNameBytes = 1024;

}  // namespace weft::opdag
