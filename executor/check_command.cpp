#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "executor/aten.h"
#include "executor/check.h"

#include "executor/worker_jail.h"

namespace weft::executor {
namespace {

constexpr int kEqual = 0, kNotEqual = 1, kUsageError = 2, kRefusedExit = 3;

constexpr const char* kUsage =
    "usage: weft model check MODEL.pt2 [--inputs FILE.safetensors] [--stages K] [--cut-seed S]\n"
    "                        [--micro-batch N] [--precision f32|f64]\n"
    "                        [--grads FILE.safetensors] [-o json]\n";

template <typename T>
bool read_number(std::string_view text, T& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

Result<CheckOptions> parse(int argc, char** argv) {
  CheckOptions options;
  const auto wrong = [](const std::string& what) {
    return make_error(Code::kInvalid, what, kUsage);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (!flag.starts_with("-")) {
      if (!options.model.empty()) return wrong(fmt::format("a second model: {}", flag));
      options.model = flag;
      continue;
    }
    if (i + 1 >= argc) return wrong(fmt::format("{} needs a value", flag));
    const std::string_view value = argv[++i];
    if (flag == "--inputs") {
      options.inputs = value;
    } else if (flag == "--grads") {
      options.grads = value;
    } else if (flag == "--micro-batch") {
      if (!read_number(value, options.micro_batch) || options.micro_batch < 1) {
        return wrong(fmt::format("--micro-batch {}: not a number from 1", value));
      }
    } else if (flag == "--stages") {
      if (!read_number(value, options.stages) || options.stages < 1) {
        return wrong(fmt::format("--stages {}: not a number from 1", value));
      }
    } else if (flag == "--cut-seed") {
      if (!read_number(value, options.cut_seed)) {
        return wrong(fmt::format("--cut-seed {}: not a number", value));
      }
    } else if (flag == "--precision" && (value == "f32" || value == "f64")) {
      options.f64 = value == "f64";
    } else if (flag == "-o" && (value == "json" || value == "text")) {
      options.json = value == "json";
    } else {
      return wrong(fmt::format("{} {} is not understood", flag, value));
    }
  }
  if (options.model.empty()) return wrong("which model?");
  return options;
}

nlohmann::json error_to_json(const Error& error) {
  return {{"code", code_name(error.code)},
          {"node", error.node},
          {"operator", error.op},
          {"message", error.message},
          {"next", error.next}};
}

// JSON has no NaN or infinity.
nlohmann::json number(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

nlohmann::json stage_to_json(const CheckedStage& stage) {
  return {{"seconds", stage.seconds}, {"peak_memory_bytes", stage.peak_memory_bytes}};
}

}  // namespace

int exit_code_of(const CheckReport& report) {
  return report.equal ? kEqual : kNotEqual;
}

nlohmann::json report_to_json(const CheckReport& report) {
  nlohmann::json json = {{"equal", report.equal},
                         {"forward_only", report.forward_only},
                         {"loss", number(report.loss)},
                         {"loss_cut", number(report.loss_cut)},
                         {"loss_difference", number(report.loss_difference)},
                         {"gradient_difference", number(report.gradient_difference)},
                         {"worst", report.worst},
                         {"tolerance", report.tolerance},
                         {"tensors", report.tensors},
                         {"whole", stage_to_json(report.whole)},
                         {"stages", nlohmann::json::array()},
                         {"warnings", report.warnings}};
  for (const CheckedStage& stage : report.stages) json["stages"].push_back(stage_to_json(stage));
  return json;
}

std::string report_to_text(const CheckReport& report) {
  std::string text;
  for (const std::string& warning : report.warnings) text += fmt::format("warning: {}\n", warning);
  if (!report.forward_only) {
    text += fmt::format("loss             {:.9g} whole, {:.9g} in {} stages\n", report.loss,
                        report.loss_cut, report.stages.size());
    text += fmt::format("loss difference  {:.3g} relative\n", report.loss_difference);
  }
  text += fmt::format("{} {:.3g} relative at most, over {} tensors{}\n",
                      report.forward_only ? "outputs differ  " : "gradients differ",
                      report.gradient_difference, report.tensors,
                      report.gradient_difference > 0 ? " (" + report.worst + ")" : "");
  const auto stage_line = [](const std::string& name, const CheckedStage& stage) {
    return fmt::format("{:<16} {:8.3f} s {:10.1f} MiB peak\n", name, stage.seconds,
                       static_cast<double>(stage.peak_memory_bytes) / (1 << 20));
  };
  text += stage_line("whole", report.whole);
  for (size_t i = 0; i < report.stages.size(); ++i) {
    text += stage_line(fmt::format("stage {}", i), report.stages[i]);
  }
  text += report.equal ? "equal\n" : fmt::format("NOT equal (tolerance {:g})\n", report.tolerance);
  return text;
}

namespace {

// The model is a stranger's file, and what it computes with too.
Result<CheckReport> check_jailed(const CheckOptions& options, os::JailMode jail) {
  std::vector<os::Path> write;
  if (!options.grads.empty()) {
    write.push_back(std::filesystem::absolute(options.grads).parent_path());
  }
  WEFT_TRY_STATUS(enter_command_jail(jail, {options.model, options.inputs}, write));
  return check_model(options);
}

}  // namespace

int check_command(int argc, char** argv, os::JailMode jail) {
  const auto options = parse(argc, argv);
  if (!options.ok()) {
    fmt::print(stderr, "weft model check: {}\n{}", options.error().message, kUsage);
    return kUsageError;
  }
  const auto report = check_jailed(*options, jail);
  if (!report.ok()) {
    const Error& error = report.error();
    if (options->json) {
      fmt::print("{}\n", error_to_json(error).dump(2));
    } else {
      fmt::print(stderr, "weft model check: {}\n", error.text());
    }
    return kRefusedExit;
  }
  if (options->json) {
    fmt::print("{}\n", report_to_json(*report).dump(2));
  } else {
    fmt::print("{}", report_to_text(*report));
  }
  return exit_code_of(*report);
}

}  // namespace weft::executor
