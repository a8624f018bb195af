#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "opdag/inspect.h"

namespace weft::opdag {
namespace {

// 1.5 k, 124 M, 2.3 G: three digits.
std::string decimal(double number) {
  static constexpr const char* kSuffix[] = {"", " k", " M", " G", " T", " P", " E"};
  size_t suffix = 0;
  while (number >= 999.5 && suffix < 6) {
    number /= 1000;
    ++suffix;
  }
  return fmt::format("{:.3g}{}", number, kSuffix[suffix]);
}

std::string bytes_text(double number) {
  static constexpr const char* kSuffix[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t suffix = 0;
  while (number >= 1023.5 && suffix < 6) {
    number /= 1024;
    ++suffix;
  }
  return fmt::format("{:.4g} {}", number, kSuffix[suffix]);
}

std::string shape_text(DType dtype, const std::vector<int64_t>& sizes) {
  return fmt::format("{}[{}]", dtype_name(dtype), fmt::join(sizes, ", "));
}

// Names come from the model; a terminal gets printable ones.
std::string plain(std::string_view name) {
  std::string text(name.substr(0, 200));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

void print_storage(std::string& out, const char* label, const StorageSummary& storage) {
  out += fmt::format("{:<12} {} tensors, {} elements, {}\n", label, storage.tensors,
                     decimal(static_cast<double>(storage.elements)),
                     bytes_text(static_cast<double>(storage.bytes)));
}

void print_costs(std::string& out, const ModelSummary& summary) {
  out += fmt::format("\n{:<12} {:>6} {:>14} {:>14} {:>12}\n", "cost class", "nodes",
                     "FLOPs forward", "backward", "bytes");
  const auto line = [&](std::string_view name, int64_t nodes, const Cost& cost) {
    out +=
        fmt::format("{:<12} {:>6} {:>14} {:>14} {:>12}\n", name, nodes, decimal(cost.flops_forward),
                    decimal(cost.flops_backward), bytes_text(cost.bytes_forward));
  };
  for (const ClassSummary& group : summary.classes) {
    line(cost_class_name(group.cost_class), group.nodes, group.cost);
  }
  line("total", summary.nodes, summary.total);
  out += fmt::format("\n{:<44} {:>6} {:>14}\n", "operator", "count", "FLOPs forward");
  for (const OperatorSummary& row : summary.operators) {
    out +=
        fmt::format("{:<44} {:>6} {:>14}\n", plain(row.op), row.count, decimal(row.flops_forward));
  }
}

void print_cuts(std::string& out, const ModelSummary& summary, size_t max_tensors) {
  out += fmt::format(
      "\n{} units can be cut apart; {} tensors may travel (made in unit, last used in)\n",
      summary.units, summary.cut_tensors.size());
  size_t printed = 0;
  for (const CutTensor& tensor : summary.cut_tensors) {
    if (printed++ == max_tensors) {
      out += fmt::format("  ... and {} more (-o json lists all)\n",
                         summary.cut_tensors.size() - max_tensors);
      break;
    }
    out += fmt::format("  {:>4} -> {:<4} {:<28} {:<26} {:>12}{}  {}\n", tensor.made_in,
                       tensor.last_used_in, plain(tensor.value),
                       shape_text(tensor.dtype, tensor.sizes),
                       bytes_text(static_cast<double>(tensor.bytes)),
                       tensor.needs_grad ? "" : " (no gradient)", plain(tensor.op));
  }
}

nlohmann::json tensor_json(const TensorSummary& tensor) {
  return {{"name", tensor.name}, {"dtype", dtype_name(tensor.dtype)}, {"sizes", tensor.sizes}};
}
nlohmann::json tensors_json(const std::vector<TensorSummary>& tensors) {
  nlohmann::json list = nlohmann::json::array();
  for (const TensorSummary& tensor : tensors) list.push_back(tensor_json(tensor));
  return list;
}
nlohmann::json storage_json(const StorageSummary& storage) {
  return {{"tensors", storage.tensors}, {"elements", storage.elements}, {"bytes", storage.bytes}};
}
nlohmann::json cost_json(const Cost& cost) {
  return {{"flops_forward", cost.flops_forward},
          {"flops_backward", cost.flops_backward},
          {"bytes_forward", cost.bytes_forward}};
}

}  // namespace

std::string to_text(const ModelSummary& summary, size_t max_tensors) {
  std::string out;
  for (const RefusedOperator& bad : summary.refused) {
    out += fmt::format("refused: {} ({} times, first node {}): {}\n", plain(bad.op), bad.count,
                       bad.node, plain(bad.advice));
  }
  for (const std::string& warning : summary.warnings) {
    out += fmt::format("warning: {}\n", plain(warning));
  }
  for (const TensorSummary& input : summary.inputs) {
    out += fmt::format("{:<12} {} {}\n", "input", plain(input.name),
                       shape_text(input.dtype, input.sizes));
  }
  for (const TensorSummary& output : summary.outputs) {
    out += fmt::format("{:<12} {} {}{}\n", "output", plain(output.name),
                       shape_text(output.dtype, output.sizes),
                       output.name == summary.loss ? " (loss)" : "");
  }
  if (summary.loss.empty()) {
    out += "no scalar loss: choose loss = \"cross_entropy\" or \"mse\" in the job file\n";
  }
  if (summary.labels_shifted_inside) {
    out += fmt::format(
        "the model shifts '{}' itself: bind it to \"tokens\"; \"next_tokens\" would shift twice\n",
        plain(summary.shifted_input));
  }
  print_storage(out, "parameters", summary.parameters);
  if (summary.trainable.elements != summary.parameters.elements) {
    print_storage(out, "trainable", summary.trainable);
  }
  print_storage(out, "buffers", summary.buffers);
  print_storage(out, "constants", summary.constants);
  for (const std::string& pair : summary.tied)
    out += fmt::format("{:<12} {}\n", "tied", plain(pair));
  print_costs(out, summary);
  print_cuts(out, summary, max_tensors);
  return out;
}

nlohmann::json to_json(const ModelSummary& summary) {
  nlohmann::json json;
  json["nodes"] = summary.nodes;
  json["operators"] = nlohmann::json::array();
  for (const OperatorSummary& row : summary.operators) {
    json["operators"].push_back({{"op", row.op},
                                 {"count", row.count},
                                 {"flops_forward", row.flops_forward},
                                 {"bytes_forward", row.bytes_forward}});
  }
  json["cost_classes"] = nlohmann::json::object();
  for (const ClassSummary& group : summary.classes) {
    nlohmann::json entry = cost_json(group.cost);
    entry["nodes"] = group.nodes;
    json["cost_classes"][std::string(cost_class_name(group.cost_class))] = std::move(entry);
  }
  json["total"] = cost_json(summary.total);
  json["parameters"] = storage_json(summary.parameters);
  json["trainable"] = storage_json(summary.trainable);
  json["buffers"] = storage_json(summary.buffers);
  json["constants"] = storage_json(summary.constants);
  json["tied"] = summary.tied;
  json["inputs"] = tensors_json(summary.inputs);
  json["outputs"] = tensors_json(summary.outputs);
  json["loss"] = summary.loss.empty() ? nlohmann::json() : nlohmann::json(summary.loss);
  json["units"] = summary.units;
  json["cut_tensors"] = nlohmann::json::array();
  for (const CutTensor& tensor : summary.cut_tensors) {
    json["cut_tensors"].push_back({{"value", tensor.value},
                                   {"op", tensor.op},
                                   {"node", tensor.node},
                                   {"dtype", dtype_name(tensor.dtype)},
                                   {"sizes", tensor.sizes},
                                   {"bytes", tensor.bytes},
                                   {"needs_grad", tensor.needs_grad},
                                   {"made_in_unit", tensor.made_in},
                                   {"last_used_in_unit", tensor.last_used_in}});
  }
  json["refused"] = nlohmann::json::array();
  for (const RefusedOperator& bad : summary.refused) {
    json["refused"].push_back(
        {{"op", bad.op}, {"count", bad.count}, {"node", bad.node}, {"next", bad.advice}});
  }
  json["warnings"] = summary.warnings;
  json["labels_shifted_inside"] = summary.labels_shifted_inside;
  json["shifted_input"] = summary.shifted_input;
  return json;
}

}  // namespace weft::opdag
