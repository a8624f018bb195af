// weft down: ends what `weft up` started and removes what it left.
#include "cli/app.h"
#include "cli/local/local_cluster.h"

namespace weft::cli {

void add_down(CLI::App& app, Globals& globals) {
  auto dir = std::make_shared<std::string>();
  auto* verb = app.add_subcommand("down", "end the cluster of this machine");
  verb->add_option("--dir", *dir, "folder given to `weft up`");
  verb->callback([=, &globals] { run_verb(globals, [&] { return stop_local_cluster(*dir); }); });
}

}  // namespace weft::cli
