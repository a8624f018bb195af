// The reader behind import_graph: import.cpp drives it, import_signature.cpp reads inputs and
// outputs, import_nodes.cpp nodes, import_arguments.cpp their arguments, import_inline.cpp graphs
// within nodes. Like import_json.h it throws on a wrong structure; import_graph turns that into
// kCorrupt.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "opdag/import.h"
#include "opdag/import_json.h"

namespace weft::opdag {

inline constexpr const char* kExportAgain =
    "save the model with torch.export.save of torch 2.9 to 2.15";

// One weight file's description in data/{weights,constants}/*_config.json.
struct Payloads {
  Json config = Json::object();
  std::string folder;
};

class Importer {
 public:
  Importer(const Archive& archive, const ImportOptions& options)
      : archive_(archive), options_(options) {}

  Result<Graph> run();

 private:
  static Error corrupt(std::string message);
  Status check_version(const Json& program);
  Status close_open_batch(Json& program);
  Status load_payloads(const std::string& model, const std::string& folder, Payloads& payloads);
  Result<WeightRef> weight(const std::string& target, bool prefer_constants);
  Result<ValueId> define(const std::string& name, const std::string& what);
  Result<ValueId> add(Value value);
  Result<ValueId> lookup(const Json& argument);
  void detect_mode();
  void warn_of_dead_loss();
  Result<Graph> finish();

  // Inputs, outputs, tied weights.
  Status refuse_dynamic_inputs(const Json& module) const;
  Status read_inputs(const Json& module);
  Status read_leaf(const std::string& kind, const Json& body, const std::string& name);
  std::vector<std::string> names_of_outputs(const Json& module);
  Status read_outputs(const Json& module);
  bool scalar_loss(const Output& output) const;
  void find_loss();
  Status tie();

  // Nodes.
  Status read_nodes(const Json& nodes);
  Status read_node(const Json& json, NodeId id);
  Status read_output(Node& node, const Json& output);
  std::string what(const Node& node, const std::string& name);

  // Higher-order operators: their graph takes the node's place.
  struct Region {
    std::string op;
    size_t graph = 0;  // which argument is its graph; the graph's inputs follow
    bool on = true;    // of gradients or autocast
  };
  static std::optional<Region> region_of(const Json& json, const std::string& op);
  Status inline_region(const Json& json, const Region& region);
  Result<ValueId> detached(ValueId id);
  Status inline_body(const Json& json, const Region& region, const std::vector<ValueId>& inputs);

  // Arguments.
  Error unsupported(const Node& node, std::string message);
  Status read_argument(Node& node, const Json& input);
  Result<Argument> tensors(const Json& list, bool optional);
  Result<Argument> symbolic(const Node& node, const std::string& kind, const Json& body);
  Result<Argument> argument(const Node& node, const std::string& kind, const Json& body);
  Result<Argument> plain_list(const Node& node, const std::string& kind, const Json& body);

  const Archive& archive_;
  const ImportOptions& options_;
  Payloads weights_, constants_;
  std::string open_batch_note_;  // the warning that a number was chosen for the user
  const Json* metas_ = nullptr;
  std::unordered_map<std::string, ValueId> ids_;  // by the names of the graph being read
  std::string prefix_;                            // of the names of values of an inlined graph
  int depth_ = 0;                                 // of graphs within graphs
  bool gradients_off_ = false;                    // inside a region of torch.no_grad()
  NodeId next_id_ = 0;
  Graph graph_;
};

}  // namespace weft::opdag
