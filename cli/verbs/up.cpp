// weft up [--peers N]: a whole cluster on this machine, in the background.
#include <fmt/format.h>

#include "cli/app.h"
#include "cli/local/local_cluster.h"

namespace weft::cli {
namespace {

Status up(const LocalOptions& options, Globals& globals) {
  WEFT_TRY(LocalCluster cluster, start_local_cluster(options));
  if (globals.json()) {
    print_json({{"host", cluster.context.host},
                {"port", cluster.context.port},
                {"ca_fingerprint", cluster.context.ca_fingerprint},
                {"join_address", cluster.join_address},
                {"peers", cluster.peers}});
    return {};
  }
  fmt::print("broker at https://{}:{} with {} peers; end it with `weft down`\n",
             cluster.context.host, cluster.context.port, cluster.peers.size());
  fmt::print("further machines: weftd join {}\n", cluster.join_address);
  return {};
}

}  // namespace

void add_up(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<LocalOptions>();
  auto dir = std::make_shared<std::string>();
  auto* verb = app.add_subcommand("up", "start a broker and peers on this machine");
  verb->add_option("--peers", options->peers, "how many")->check(CLI::Range(0, 256));
  verb->add_option("--dir", *dir, "folder for all of its state");
  verb->add_option("--host", options->host, "address to bind and advertise");
  verb->add_option("--device", options->device, "auto, cpu or cuda:N");
  verb->add_option("--threads", options->threads,
                   "compute threads of each worker; 0: cores / peers");
  verb->callback([=, &globals] {
    run_verb(globals, [&] {
      options->dir = *dir;
      return up(*options, globals);
    });
  });
}

}  // namespace weft::cli
