// weft: the user's command line. A thin client of the broker's HTTP API (docs/api.md).
#include "base/version.h"
#include "cli/app.h"

int main(int argc, char** argv) {
  using namespace weft::cli;
  Globals globals;
  CLI::App app{"weft trains exported PyTorch models across many machines"};
  app.set_version_flag("--version", std::string("weft ") + weft::kVersion);
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("-o,--output", globals.output, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  app.add_option("--context", globals.context, "which login to use, see `weft login`");
  add_model(app, globals);
  add_data(app, globals);
  add_up(app, globals);
  add_down(app, globals);
  add_login(app, globals);
  CLI::App* job = app.add_subcommand("job", "submit, watch and change jobs");
  job->require_subcommand(1);
  add_job_submit(*job, globals);
  add_job_show(*job, globals);
  add_job_watch(*job, globals);
  add_job_change(*job, globals);
  add_plan(app, globals);
  add_simulate(app, globals);
  add_peer(app, globals);
  add_link(app, globals);
  add_checkpoint(app, globals);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? kExitOk : kExitUsage;
  }
  return globals.exit_code;
}
