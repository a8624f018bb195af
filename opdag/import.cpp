#include "opdag/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "opdag/functional.h"
#include "opdag/import_json.h"
#include "opdag/op_table.h"

namespace weft::opdag {
namespace {

constexpr const char* kExportAgain = "save the model with torch.export.save of torch 2.9 to 2.11";
constexpr int kSchemaMajor = 8;

std::string_view text_of(const Buffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()), buffer.size()};
}

Result<Json> read_json(const Archive& archive, const std::string& name) {
  WEFT_TRY(const Buffer bytes, archive.entry(name));
  return parse_json(text_of(bytes), name);
}

// "model" of models/model.json: the one the archive holds, or the one called "model".
Result<std::string> model_name(const Archive& archive) {
  if (archive.has("models/model.json")) return std::string("model");
  std::vector<std::string> found;
  for (const std::string& name : archive.names()) {
    const size_t folder = name.rfind("models/");
    if (folder == name.npos || !name.ends_with(".json")) continue;
    if (folder != 0 && name[folder - 1] != '/') continue;
    const std::string stem = name.substr(folder + 7, name.size() - folder - 12);
    if (stem.find('/') == stem.npos && archive.has("models/" + stem + ".json")) {
      found.push_back(stem);
    }
  }
  if (found.size() == 1) return found.front();
  return make_error(Code::kCorrupt,
                    found.empty() ? "the archive holds no models/model.json"
                                  : fmt::format("the archive holds {} models", found.size()),
                    kExportAgain);
}

// Asserts and shape hints of the exporter: they compute nothing.
bool is_dropped(std::string_view op) {
  static constexpr std::string_view kDropped[] = {
      "aten::_assert_tensor_metadata", "aten::_assert_scalar",
      "aten::_assert_async",           "aten::_assert_async.msg",
      "aten::sym_constrain_range",     "aten::sym_constrain_range_for_size"};
  return std::find(std::begin(kDropped), std::end(kDropped), op) != std::end(kDropped);
}

// Uninitialised memory would show a stranger's graph what lay there before; such operators become
// the zeroing ones of the same arguments (but memory_format, which zeros does not take).
std::string initialised(std::string op) {
  if (op == "aten::empty.memory_format") return "aten::zeros";
  if (op == "aten::empty_like") return "aten::zeros_like";
  if (op == "aten::new_empty") return "aten::new_zeros";
  return op;
}

// One weight file's description in data/{weights,constants}/*_config.json.
struct Payloads {
  Json config = Json::object();
  std::string folder;
};

class Importer {
 public:
  Importer(const Archive& archive, const ImportOptions& options)
      : archive_(archive), options_(options) {}

  Result<Graph> run() {
    WEFT_TRY(const std::string name, model_name(archive_));
    WEFT_TRY(const Json program, read_json(archive_, "models/" + name + ".json"));
    WEFT_TRY_STATUS(check_version(program));
    WEFT_TRY_STATUS(load_payloads(name, "weights", weights_));
    WEFT_TRY_STATUS(load_payloads(name, "constants", constants_));
    const Json& module = program.at("graph_module");
    metas_ = &module.at("graph").at("tensor_values");
    WEFT_TRY_STATUS(read_inputs(module));
    WEFT_TRY_STATUS(read_nodes(module.at("graph").at("nodes")));
    WEFT_TRY_STATUS(read_outputs(module));
    find_loss();
    WEFT_TRY_STATUS(tie());
    return finish();
  }

 private:
  static Error corrupt(std::string message) {
    return make_error(Code::kCorrupt, std::move(message), kExportAgain);
  }

  Status check_version(const Json& program) {
    const Json& version = program.at("schema_version");
    const int64_t major = read_integer(version.at("major"));
    if (major != kSchemaMajor) {
      return make_error(
          Code::kRefused,
          fmt::format(
              "the archive's graph format is version {}.{} (torch {}), weft reads version {}",
              major, version.value("minor", 0), program.value("torch_version", "?"), kSchemaMajor),
          kExportAgain);
    }
    if (archive_.has("byteorder")) {
      WEFT_TRY(const Buffer order, archive_.entry("byteorder"));
      if (text_of(order) != "little") {
        return make_error(Code::kRefused, "the archive's weights are big-endian",
                          "export the model on a little-endian machine");
      }
    }
    return {};
  }

  Status load_payloads(const std::string& model, const std::string& folder, Payloads& payloads) {
    const std::string name = fmt::format("data/{}/{}_{}_config.json", folder, model, folder);
    if (!archive_.has(name)) return {};
    payloads.folder = "data/" + folder + "/";
    WEFT_TRY(const Json file, read_json(archive_, name));
    payloads.config = file.at("config");
    if (!payloads.config.is_object()) return corrupt(name + " has no table 'config'");
    return {};
  }

  Result<WeightRef> weight(const std::string& target, bool prefer_constants) {
    const Payloads* places[] = {prefer_constants ? &constants_ : &weights_,
                                prefer_constants ? &weights_ : &constants_};
    for (const Payloads* place : places) {
      const auto found = place->config.find(target);
      if (found == place->config.end()) continue;
      const std::string path = place->folder + found->at("path_name").get<std::string>();
      if (found->at("use_pickle").get<bool>() || found->at("tensor_meta").is_null()) {
        return make_error(Code::kRefused,
                          fmt::format("'{}' is stored as a pickle, which weft never opens", target),
                          "make it a plain tensor before the export");
      }
      const auto bytes = archive_.size_of(path);
      if (!bytes) return corrupt(fmt::format("the file '{}' of '{}' is missing", path, target));
      WEFT_TRY(const TensorMeta meta, read_meta(found->at("tensor_meta"), "'" + target + "'"));
      return WeightRef{path, *bytes, meta.dtype, meta.sizes, meta.strides, meta.storage_offset};
    }
    return corrupt(fmt::format("the archive holds no weights for '{}'", target));
  }

  // ---- values ---------------------------------------------------------------------------------

  Result<ValueId> define(const std::string& name, const std::string& what) {
    Value value;
    value.id = static_cast<ValueId>(graph_.values.size());
    value.name = name;
    const auto meta = metas_->find(name);
    if (meta == metas_->end()) return corrupt(fmt::format("{} has no shape", what));
    WEFT_TRY(value.meta, read_meta(*meta, what));
    return add(std::move(value));
  }

  Result<ValueId> add(Value value) {
    const ValueId id = value.id;
    if (!ids_.emplace(value.name, id).second) {
      return corrupt(fmt::format("two values are called '{}'", value.name));
    }
    graph_.values.push_back(std::move(value));
    return id;
  }

  Result<ValueId> lookup(const Json& argument) {
    const auto name = argument.at("name").get<std::string>();
    const auto found = ids_.find(name);
    if (found == ids_.end()) return corrupt(fmt::format("value '{}' is made by nothing", name));
    return found->second;
  }

  // ---- signature: inputs ----------------------------------------------------------------------

  Status read_inputs(const Json& module) {
    for (const Json& spec : module.at("signature").at("input_specs")) {
      const auto [kind, body] = union_member(spec);
      if (kind == "constant_input") continue;  // baked into the graph
      if (kind == "custom_obj" || kind == "token") {
        return make_error(Code::kRefused, fmt::format("the model takes a {} input", kind),
                          "use tensors only");
      }
      const Json* arg = &body->at("arg");
      if (kind == "user_input") {
        const auto [arg_kind, arg_body] = union_member(*arg);
        if (arg_kind.starts_with("as_sym")) {
          return dynamic_shape(fmt::format("input {}", arg_body->dump()), "a symbolic number");
        }
        if (arg_kind != "as_tensor") continue;
        arg = arg_body;
      }
      WEFT_TRY_STATUS(read_leaf(kind, *body, arg->at("name").get<std::string>()));
    }
    return {};
  }

  Status read_leaf(const std::string& kind, const Json& body, const std::string& name) {
    Leaf leaf;
    leaf.target = name;
    bool in_constants = false;
    if (kind == "user_input") {
      leaf.kind = LeafKind::kUserInput;
    } else if (kind == "parameter") {
      leaf.kind = LeafKind::kParameter;
      leaf.target = body.at("parameter_name").get<std::string>();
    } else if (kind == "buffer") {
      leaf.kind = LeafKind::kBuffer;
      leaf.target = body.at("buffer_name").get<std::string>();
      leaf.persistent = body.at("persistent").get<bool>();
      in_constants = !leaf.persistent;
    } else if (kind == "tensor_constant") {
      leaf.kind = LeafKind::kConstant;
      leaf.target = body.at("tensor_constant_name").get<std::string>();
      leaf.persistent = false;
      in_constants = true;
    } else {
      return make_error(Code::kRefused, fmt::format("input kind '{}' is unknown", kind),
                        kExportAgain);
    }
    WEFT_TRY(leaf.value, define(name, fmt::format("input '{}'", leaf.target)));
    if (leaf.kind == LeafKind::kParameter) {
      leaf.trainable = metas_->at(name).at("requires_grad").get<bool>() &&
                       dtype_can_have_gradient(graph_.value(leaf.value).meta.dtype);
    }
    if (leaf.kind != LeafKind::kUserInput) {
      WEFT_TRY(leaf.weight, weight(leaf.target, in_constants));
    }
    graph_.leaves.push_back(std::move(leaf));
    return {};
  }

  // ---- nodes ----------------------------------------------------------------------------------

  Status read_nodes(const Json& nodes) {
    if (nodes.size() > kMaxNodes) {
      return make_error(Code::kTooLarge, fmt::format("the graph has {} nodes, at most {} are read",
                                                     nodes.size(), kMaxNodes));
    }
    next_id_ = static_cast<NodeId>(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      Node node;
      node.id = static_cast<NodeId>(i);
      node.op = initialised(read_target(nodes[i].at("target").get<std::string>()));
      if (is_dropped(node.op)) continue;
      if (find_op(node.op) == nullptr && !options_.keep_refused && !rewritten_later(node.op)) {
        return refused_op(node);
      }
      for (const Json& input : nodes[i].at("inputs")) {
        WEFT_TRY_STATUS(read_argument(node, input));
      }
      if (node.op == "aten::zeros") {
        std::erase_if(node.arguments, [](const NamedArgument& argument) {
          return argument.name == "memory_format";
        });
      }
      const Json& outputs = nodes[i].at("outputs");
      for (size_t k = 0; k < outputs.size(); ++k) {
        WEFT_TRY_STATUS(read_output(node, outputs[k]));
      }
      graph_.nodes.push_back(std::move(node));
    }
    return {};
  }

  // In-place forms without a row of their own: make_functional turns them into operators that have
  // one, or refuses them.
  static bool rewritten_later(std::string_view op) { return is_in_place(op); }

  Error unsupported(const Node& node, std::string message) {
    Error error = make_error(Code::kRefused,
                             fmt::format("node {} ({}): {}", node.id, node.op, std::move(message)),
                             "rewrite that part of the model with plain tensor operators");
    error.node = std::to_string(node.id);
    error.op = node.op;
    return error;
  }

  Status read_argument(Node& node, const Json& input) {
    NamedArgument named{input.at("name").get<std::string>(), NoneArg{}};
    if (named.name.empty()) named.name = fmt::format("arg{}", node.arguments.size());
    const auto [kind, body] = union_member(input.at("arg"));
    WEFT_TRY(auto value, argument(node, kind, *body));
    named.value = std::move(value);
    node.arguments.push_back(std::move(named));
    return {};
  }

  Result<Argument> tensors(const Json& list, bool optional) {
    ValueListArg out;
    for (const Json& item : list) {
      if (optional) {
        const auto [kind, body] = union_member(item);
        if (kind == "as_none") {
          out.ids.push_back(kNone);
          continue;
        }
        WEFT_TRY(const ValueId id, lookup(*body));
        out.ids.push_back(id);
      } else {
        WEFT_TRY(const ValueId id, lookup(item));
        out.ids.push_back(id);
      }
    }
    return Argument(std::move(out));
  }

  Result<Argument> symbolic(const Node& node, const std::string& kind, const Json& body) {
    const bool list = kind == "as_sym_ints";
    IntListArg ints;
    for (const Json& item : list ? body : Json::array({body})) {
      const auto [item_kind, number] = union_member(item);
      if (item_kind == "as_int") {
        ints.items.push_back({read_integer(*number), kNone});
      } else if (item_kind == "as_float") {
        return Argument(read_double(*number));
      } else if (item_kind == "as_bool") {
        return Argument(number->get<bool>());
      } else {
        if (options_.keep_refused) return Argument(NoneArg{});
        return dynamic_shape(fmt::format("a size that node {} ({}) computes", node.id, node.op),
                             number->dump());
      }
    }
    if (list) return Argument(std::move(ints));
    return Argument(ints.items.front().literal);
  }

  Result<Argument> argument(const Node& node, const std::string& kind, const Json& body) {
    if (kind == "as_none") return Argument(NoneArg{});
    if (kind == "as_tensor") {
      WEFT_TRY(const ValueId id, lookup(body));
      return Argument(ValueArg{id});
    }
    if (kind == "as_tensors") return tensors(body, false);
    if (kind == "as_optional_tensors") return tensors(body, true);
    if (kind == "as_optional_tensor") {
      const auto [inner, value] = union_member(body);
      return inner == "as_none" ? Argument(NoneArg{}) : argument(node, "as_tensor", *value);
    }
    if (kind == "as_int") return Argument(read_integer(body));
    if (kind == "as_float") return Argument(read_double(body));
    if (kind == "as_bool") return Argument(body.get<bool>());
    if (kind == "as_string") return Argument(body.get<std::string>());
    if (kind.starts_with("as_sym_")) return symbolic(node, kind, body);
    if (kind == "as_scalar_type") {
      WEFT_TRY(const DType dtype, read_dtype(body));
      return Argument(DTypeArg{dtype});
    }
    if (kind == "as_device") return Argument(DeviceArg{read_device(body)});
    return plain_list(node, kind, body);
  }

  Result<Argument> plain_list(const Node& node, const std::string& kind, const Json& body) {
    if (kind == "as_ints") {
      IntListArg ints;
      for (const Json& item : body) ints.items.push_back({read_integer(item), kNone});
      return Argument(std::move(ints));
    }
    if (kind == "as_floats") {
      FloatListArg floats;
      for (const Json& item : body) floats.items.push_back(read_double(item));
      return Argument(std::move(floats));
    }
    if (kind == "as_bools") return Argument(BoolListArg{body.get<std::vector<bool>>()});
    if (kind == "as_layout") {
      if (read_integer(body) == 7) return Argument(LayoutArg{"strided"});
      return unsupported(node, "sparse layouts are not supported");
    }
    if (kind == "as_memory_format") {
      static constexpr const char* kFormats[] = {"contiguous_format", "channels_last",
                                                 "channels_last_3d", "preserve_format"};
      const int64_t code = read_integer(body);
      if (code >= 1 && code <= 4) return Argument(MemoryFormatArg{kFormats[code - 1]});
    }
    if (kind == "as_complex") {
      return Argument(ComplexArg{read_double(body.at("real")), read_double(body.at("imag"))});
    }
    if (options_.keep_refused) return Argument(NoneArg{});
    return unsupported(node, fmt::format("an argument of kind '{}' is not supported", kind));
  }

  std::string what(const Node& node, const std::string& name) {
    return fmt::format("value '{}' of node {} ({})", name, node.id, node.op);
  }

  Status read_output(Node& node, const Json& output) {
    const auto [kind, body] = union_member(output);
    if (kind == "as_none") {
      node.outputs.push_back(kNone);
    } else if (kind == "as_tensor") {
      const auto name = body->at("name").get<std::string>();
      WEFT_TRY(const ValueId id, define(name, what(node, name)));
      node.outputs.push_back(id);
    } else if (kind == "as_tensors") {
      Value list;
      for (const Json& item : *body) {
        const auto name = item.at("name").get<std::string>();
        WEFT_TRY(const ValueId id, define(name, what(node, name)));
        list.elements.push_back(id);
      }
      list.id = static_cast<ValueId>(graph_.values.size());
      list.name = fmt::format("list_{}_{}", node.id, node.outputs.size());
      list.kind = ValueKind::kTensorList;
      WEFT_TRY(const ValueId id, add(std::move(list)));
      node.outputs.push_back(id);
    } else if (options_.keep_refused && kind.starts_with("as_sym_") && !body->empty()) {
      Value number;
      number.id = static_cast<ValueId>(graph_.values.size());
      number.name = body->begin()->is_string() ? body->begin()->get<std::string>()
                                               : fmt::format("number_{}", number.id);
      number.kind = kind == "as_sym_int"     ? ValueKind::kInt
                    : kind == "as_sym_float" ? ValueKind::kFloat
                                             : ValueKind::kBool;
      WEFT_TRY(const ValueId id, add(std::move(number)));
      node.outputs.push_back(id);
    } else if (kind.starts_with("as_sym_")) {
      return dynamic_shape(fmt::format("a number that node {} ({}) computes", node.id, node.op),
                           body->dump());
    } else {
      return unsupported(node, fmt::format("a result of kind '{}' is not supported", kind));
    }
    return {};
  }

  // ---- signature: outputs ---------------------------------------------------------------------

  std::vector<std::string> names_of_outputs(const Json& module) {
    for (const Json& entry : module.at("module_call_graph")) {
      if (entry.at("fqn").get<std::string>().empty() && entry.contains("signature") &&
          entry.at("signature").is_object()) {
        return output_names(entry.at("signature").at("out_spec").get<std::string>());
      }
    }
    return {};
  }

  Status read_outputs(const Json& module) {
    const Json& specs = module.at("signature").at("output_specs");
    std::vector<std::string> names = names_of_outputs(module);
    const auto users =
        static_cast<size_t>(std::count_if(specs.begin(), specs.end(), [](const Json& spec) {
          const std::string kind = union_member(spec).first;
          return kind == "user_output" || kind == "loss_output";
        }));
    if (names.size() != users) {
      names.clear();
      for (size_t i = 0; i < users; ++i) names.push_back(fmt::format("out.{}", i));
    }
    size_t position = 0;
    for (const Json& spec : specs) {
      const auto [kind, body] = union_member(spec);
      if (kind == "user_output") {
        const auto [arg_kind, arg] = union_member(body->at("arg"));
        const std::string& name = names[position++];
        if (arg_kind != "as_tensor") continue;
        WEFT_TRY(const ValueId id, lookup(*arg));
        graph_.outputs.push_back({name, id});
      } else if (kind == "loss_output") {
        WEFT_TRY(const ValueId id, lookup(body->at("arg")));
        graph_.loss_output = static_cast<int32_t>(graph_.outputs.size());
        graph_.outputs.push_back({names[position++], id});
      } else if (kind == "buffer_mutation") {
        WEFT_TRY(const ValueId id, lookup(body->at("arg")));
        graph_.buffer_updates.push_back({body->at("buffer_name").get<std::string>(), id});
      } else if (kind != "user_input_mutation") {
        return make_error(Code::kRefused, fmt::format("the model has an output of kind '{}'", kind),
                          "export the model's plain forward, before any joint or lowered form");
      }
    }
    return {};
  }

  bool scalar_loss(const Output& output) const {
    const Value& value = graph_.value(output.value);
    return value.kind == ValueKind::kTensor && value.meta.sizes.empty() &&
           dtype_is_floating(value.meta.dtype);
  }

  void find_loss() {
    if (graph_.loss_output != kNone) return;
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      if (!scalar_loss(graph_.outputs[i])) continue;
      const bool named = graph_.outputs[i].name == "loss";
      if (graph_.loss_output == kNone || named) graph_.loss_output = static_cast<int32_t>(i);
      if (named) return;
    }
  }

  // ---- tied weights ---------------------------------------------------------------------------

  Status tie() {
    std::map<std::string, std::vector<size_t>> by_file;
    for (size_t i = 0; i < graph_.leaves.size(); ++i) {
      if (graph_.leaves[i].kind == LeafKind::kParameter) {
        by_file[graph_.leaves[i].weight.path].push_back(i);
      }
    }
    int32_t next_group = 0;
    for (auto& [path, members] : by_file) {
      for (size_t a = 0; a < members.size(); ++a) {
        Leaf& first = graph_.leaves[members[a]];
        for (size_t b = a + 1; b < members.size(); ++b) {
          Leaf& second = graph_.leaves[members[b]];
          if (first.weight == second.weight) {
            if (first.tied_group == kNone) first.tied_group = next_group++;
            second.tied_group = first.tied_group;
          } else if (overlap(first.weight, second.weight)) {
            return make_error(Code::kRefused,
                              fmt::format("parameters '{}' and '{}' share a part of one storage",
                                          first.target, second.target),
                              "make them the same parameter, or separate ones");
          }
        }
      }
    }
    return {};
  }

  static bool overlap(const WeightRef& a, const WeightRef& b) {
    const auto end = [](const WeightRef& w) {
      return w.storage_offset + strided_extent(w.sizes, w.strides).value_or(0);
    };
    return a.storage_offset < end(b) && b.storage_offset < end(a);
  }

  // ---- the end --------------------------------------------------------------------------------

  void detect_mode() {
    bool evidence = false;
    for (const Node& node : graph_.nodes) {
      const OpInfo* info = find_op(node.op);
      if (info == nullptr || info->train_flag.empty()) continue;
      // Normalisation without running statistics trains in every mode and proves nothing.
      const bool without_buffers =
          !info->writes_buffers.empty() &&
          std::all_of(info->writes_buffers.begin(), info->writes_buffers.end(),
                      [&](std::string_view name) {
                        const Argument* argument = node.find(name);
                        return argument == nullptr || std::holds_alternative<NoneArg>(*argument);
                      });
      if (without_buffers) continue;
      const Argument* flag = node.find(info->train_flag);
      const bool* on = flag == nullptr ? nullptr : std::get_if<bool>(flag);
      if (on == nullptr) continue;
      if (*on) return;
      evidence = true;
    }
    if (!evidence) return;
    graph_.train_mode = false;
    graph_.warnings.push_back(
        "the model was exported in eval mode: dropout is off and batch norm does not learn its "
        "statistics; call model.train() before torch.export.export to train it");
  }

  Result<Graph> finish() {
    WEFT_TRY_STATUS(validate_structure(graph_));
    WEFT_TRY_STATUS(make_functional(graph_, next_id_));
    group_written_buffers(graph_);
    detect_mode();
    if (options_.keep_refused) {
      WEFT_TRY_STATUS(validate_structure(graph_));
    } else {
      WEFT_TRY_STATUS(validate(graph_));
    }
    return std::move(graph_);
  }

  const Archive& archive_;
  const ImportOptions& options_;
  Payloads weights_, constants_;
  const Json* metas_ = nullptr;
  std::unordered_map<std::string, ValueId> ids_;
  NodeId next_id_ = 0;
  Graph graph_;
};

}  // namespace

Result<Graph> import_graph(const Archive& archive, const ImportOptions& options) {
  try {
    return Importer(archive, options).run();
  } catch (const std::exception& e) {
    return make_error(Code::kCorrupt,
                      fmt::format("the archive's graph description is malformed: {}", e.what()),
                      kExportAgain);
  }
}

}  // namespace weft::opdag
