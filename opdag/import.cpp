#include "opdag/import.h"

#include <fmt/format.h>

#include <algorithm>

#include "opdag/derive.h"
#include "opdag/functional.h"
#include "opdag/import_reader.h"
#include "opdag/lstm_shapes.h"
#include "opdag/op_table.h"
#include "opdag/open_batch.h"

namespace weft::opdag {
namespace {

constexpr int kSchemaMajor = 8;

std::string_view text_of(const Buffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()), buffer.size()};
}

Result<Json> read_json(const Archive& archive, const std::string& name) {
  if (const uint64_t bytes = archive.size_of(name).value_or(0); bytes > kMaxJsonBytes) {
    return make_error(Code::kTooLarge, fmt::format("{} has {} bytes, at most {} are read", name,
                                                   bytes, kMaxJsonBytes));
  }
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

}  // namespace

Result<Graph> Importer::run() {
  WEFT_TRY(const std::string name, model_name(archive_));
  WEFT_TRY(Json program, read_json(archive_, "models/" + name + ".json"));
  WEFT_TRY_STATUS(check_version(program));
  WEFT_TRY_STATUS(close_open_batch(program));
  WEFT_TRY_STATUS(load_payloads(name, "weights", weights_));
  WEFT_TRY_STATUS(load_payloads(name, "constants", constants_));
  const Json& module = program.at("graph_module");
  metas_ = &module.at("graph").at("tensor_values");
  WEFT_TRY_STATUS(refuse_dynamic_inputs(module));
  WEFT_TRY_STATUS(read_inputs(module));
  WEFT_TRY_STATUS(read_nodes(module.at("graph").at("nodes")));
  WEFT_TRY_STATUS(read_outputs(module));
  find_loss();
  WEFT_TRY_STATUS(tie());
  return finish();
}

Status Importer::close_open_batch(Json& program) {
  const auto open = open_batch_of(program);
  if (!open) return {};
  const auto batch = options_.micro_batch ? options_.micro_batch : open->sample;
  if (!batch) {
    return make_error(
        Code::kInvalid, "the export leaves the batch open",
        "set train.micro_batch (weft model: --micro-batch) to the samples of a micro-batch");
  }
  if (!options_.micro_batch) {
    open_batch_note_ = fmt::format(
        "the export leaves the batch open: micro-batches of {} as in its example "
        "inputs, unless train.micro_batch of the job file says otherwise",
        *batch);
  }
  return close_batch(program, *open, *batch);
}

Error Importer::corrupt(std::string message) {
  return make_error(Code::kCorrupt, std::move(message), kExportAgain);
}

Status Importer::check_version(const Json& program) {
  const Json& version = program.at("schema_version");
  const int64_t major = read_integer(version.at("major"));
  const int64_t minor = version.contains("minor") ? read_integer(version.at("minor")) : 0;
  if (major != kSchemaMajor) {
    return make_error(
        Code::kRefused,
        fmt::format("the archive's graph format is version {}.{} (torch {}), weft reads version {}",
                    major, minor, program.value("torch_version", "?"), kSchemaMajor),
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

Status Importer::load_payloads(const std::string& model, const std::string& folder,
                               Payloads& payloads) {
  const std::string name = fmt::format("data/{}/{}_{}_config.json", folder, model, folder);
  if (!archive_.has(name)) return {};
  payloads.folder = "data/" + folder + "/";
  WEFT_TRY(const Json file, read_json(archive_, name));
  payloads.config = file.at("config");
  if (!payloads.config.is_object()) return corrupt(name + " has no table 'config'");
  return {};
}

Result<WeightRef> Importer::weight(const std::string& target, bool prefer_constants) {
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

Result<ValueId> Importer::define(const std::string& name, const std::string& what) {
  Value value;
  value.id = static_cast<ValueId>(graph_.values.size());
  value.name = prefix_ + name;
  const auto meta = metas_->find(name);
  if (meta == metas_->end()) return corrupt(fmt::format("{} has no shape", what));
  WEFT_TRY(value.meta, read_meta(*meta, what));
  return add(std::move(value));
}

Result<ValueId> Importer::add(Value value) {
  const ValueId id = value.id;
  if (!ids_.emplace(value.name.substr(prefix_.size()), id).second) {
    return corrupt(fmt::format("two values are called '{}'", value.name));
  }
  graph_.values.push_back(std::move(value));
  return id;
}

Result<ValueId> Importer::lookup(const Json& argument) {
  const auto name = argument.at("name").get<std::string>();
  const auto found = ids_.find(name);
  if (found == ids_.end()) return corrupt(fmt::format("value '{}' is made by nothing", name));
  return found->second;
}

void Importer::detect_mode() {
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

void Importer::warn_of_dead_loss() {
  if (graph_.loss_output == kNone) return;
  const bool trainable = std::any_of(graph_.leaves.begin(), graph_.leaves.end(),
                                     [](const Leaf& leaf) { return leaf.trainable; });
  const ValueId loss = graph_.outputs[static_cast<size_t>(graph_.loss_output)].value;
  if (!trainable || values_with_gradient(graph_)[static_cast<size_t>(loss)]) return;
  graph_.warnings.push_back(
      "the loss depends on no trainable parameter, nothing would be learned: forward runs under "
      "torch.no_grad(), or under checkpoint(..., use_reentrant=True), which exports so; use "
      "use_reentrant=False and export again");
}

Result<Graph> Importer::finish() {
  WEFT_TRY_STATUS(validate_structure(graph_));
  WEFT_TRY_STATUS(correct_lstm_shapes(graph_));
  WEFT_TRY_STATUS(make_functional(graph_, next_id_));
  group_written_buffers(graph_);
  detect_mode();
  warn_of_dead_loss();
  if (!open_batch_note_.empty()) graph_.warnings.push_back(open_batch_note_);
  if (options_.keep_refused) {
    WEFT_TRY_STATUS(validate_structure(graph_));
  } else {
    WEFT_TRY_STATUS(validate(graph_));
  }
  return std::move(graph_);
}

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
