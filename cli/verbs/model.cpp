// weft model inspect | check MODEL.pt2
#include <cstdio>

#include "base/os/process.h"
#include "cli/app.h"
#include "opdag/import.h"
#include "opdag/inspect.h"

namespace weft::cli {
namespace {

struct ModelOptions {
  std::string model, inputs, grads, precision;
  int stages = 0;
  int64_t cut_seed = -1;
  int64_t micro_batch = 0;
};

Status inspect(const ModelOptions& options, Globals& globals) {
  WEFT_TRY(opdag::Archive archive, opdag::Archive::open(options.model));
  opdag::ImportOptions import;
  import.keep_refused = true;
  if (options.micro_batch > 0) import.micro_batch = options.micro_batch;
  WEFT_TRY(opdag::Graph graph, opdag::import_graph(archive, import));
  const opdag::ModelSummary summary = opdag::summarize(graph);
  if (globals.json()) {
    print_json(opdag::to_json(summary));
  } else {
    std::printf("%s", opdag::to_text(summary).c_str());
  }
  if (!summary.refused.empty()) globals.exit_code = kExitRefused;
  return {};
}

// The check needs libtorch, which only weft-worker links: this process becomes that program.
Status check(const ModelOptions& options, const Globals& globals) {
  const std::string program = (os::program_dir() / "weft-worker").string();
  std::vector<std::string> words = {program, "check", options.model};
  const auto add = [&](const char* flag, const std::string& value) {
    if (value.empty()) return;
    words.emplace_back(flag);
    words.push_back(value);
  };
  add("--inputs", options.inputs);
  add("--grads", options.grads);
  add("--precision", options.precision);
  if (options.stages > 0) add("--stages", std::to_string(options.stages));
  if (options.micro_batch > 0) add("--micro-batch", std::to_string(options.micro_batch));
  if (options.cut_seed >= 0) add("--cut-seed", std::to_string(options.cut_seed));
  if (globals.json()) add("-o", "json");
  std::fflush(stdout);
  Error error = os::replace_program(words);
  error.next = "weft-worker must stand beside weft; build it with scripts/build";
  return error;
}

}  // namespace

void add_model(CLI::App& app, Globals& globals) {
  CLI::App* model = app.add_subcommand("model", "look at an exported model before the first job");
  model->require_subcommand(1);
  auto options = std::make_shared<ModelOptions>();
  auto* show = model->add_subcommand("inspect", "operators, parameters, costs, edges, refusals");
  show->add_option("model", options->model, "MODEL.pt2")->required();
  show->callback([=, &globals] { run_verb(globals, [&] { return inspect(*options, globals); }); });
  auto* run = model->add_subcommand("check", "run it whole and cut, and compare every gradient");
  run->add_option("model", options->model, "MODEL.pt2")->required();
  run->add_option("--inputs", options->inputs, "safetensors named as in the export's signature");
  run->add_option("--stages", options->stages, "stages of the cut run")->check(CLI::PositiveNumber);
  run->add_option("--cut-seed", options->cut_seed, "which random legal cut");
  run->add_option("--precision", options->precision, "f32 or f64")
      ->check(CLI::IsMember({"f32", "f64"}));
  run->add_option("--grads", options->grads, "write loss and gradients to this safetensors file");
  for (CLI::App* verb : {show, run}) {
    verb->add_option("--micro-batch", options->micro_batch,
                     "samples of a micro-batch, where the export leaves them open")
        ->check(CLI::PositiveNumber);
  }
  run->callback([=, &globals] { run_verb(globals, [&] { return check(*options, globals); }); });
}

}  // namespace weft::cli
