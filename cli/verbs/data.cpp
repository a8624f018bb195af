// weft data tokens --text FILE --out PREFIX [--tokenizer tokenizer.json]
#include <fmt/format.h>

#include "cli/app.h"
#include "job/tokenize.h"

namespace weft::cli {
namespace {

struct Options {
  std::string text, out, tokenizer;
  double eval_fraction = 0.05;
};

Status tokens(const Options& options, Globals& globals) {
  WEFT_TRY(job::TokenizeReport report,
           job::tokenize_file(options.text, options.out, options.tokenizer, options.eval_fraction));
  if (globals.json()) {
    print_json({{"train", options.out + ".train.bin"},
                {"eval", options.out + ".eval.bin"},
                {"train_tokens", report.train_tokens},
                {"eval_tokens", report.eval_tokens},
                {"vocabulary", report.vocabulary}});
  } else {
    fmt::print("{0}.train.bin: {1} tokens, {0}.eval.bin: {2} tokens, vocabulary {3}\n", options.out,
               report.train_tokens, report.eval_tokens, report.vocabulary);
  }
  return {};
}

}  // namespace

void add_data(CLI::App& app, Globals& globals) {
  CLI::App* data = app.add_subcommand("data", "prepare training data");
  data->require_subcommand(1);
  auto options = std::make_shared<Options>();
  auto* verb = data->add_subcommand("tokens", "text to token files for training and evaluation");
  verb->add_option("--text", options->text, "UTF-8 text")->required()->check(CLI::ExistingFile);
  verb->add_option("--out", options->out, "prefix of the files written")->required();
  verb->add_option("--tokenizer", options->tokenizer,
                   "Hugging Face tokenizer.json (byte-level BPE); bytes otherwise");
  verb->add_option("--eval-fraction", options->eval_fraction,
                   "share of the end kept for evaluation")
      ->check(CLI::Range(0.0, 0.9));
  verb->callback([=, &globals] { run_verb(globals, [&] { return tokens(*options, globals); }); });
}

}  // namespace weft::cli
