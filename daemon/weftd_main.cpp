// weftd: the daemon of a volunteer's machine. Sub-commands: run, join ADDRESS, config show.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/log.h"
#include "base/os/folder_lock.h"
#include "base/os/process.h"
#include "base/version.h"
#include "daemon/membership.h"
#include "daemon/service.h"
#include "daemon/settings.h"

namespace weft::daemon {
namespace {

constexpr int kExitFailed = 1;  // the daemon ran and ended in an error
constexpr int kExitUsage = 2;   // command line or configuration
constexpr int kExitDenied = 3;  // not joined, refused, or removed by the broker

int report(const Error& error, int code) {
  std::fprintf(stderr, "weftd: %s\n", error.text().c_str());
  return code;
}

struct Command {
  std::string config_file;
  std::vector<std::pair<std::string, std::string>> flags;
  std::string address, address_file;
  bool origin = false;
  bool no_run = false;
};

Status configure(Config& config, const Command& command) {
  if (!command.config_file.empty()) WEFT_TRY_STATUS(config.load_file(command.config_file));
  WEFT_TRY_STATUS(config.load_environment());
  for (const auto& [name, value] : command.flags) WEFT_TRY_STATUS(config.set_flag(name, value));
  return {};
}

int serve(const Config& config, Membership member) {
  log_init("weftd", log_level_from_name(config.text("log_level")).value_or(LogLevel::kInfo),
           config.boolean("log_json"));
  auto service = Service::create(config, std::move(member));
  if (!service.ok()) return report(service.error(), kExitFailed);
  const Status status = (*service)->run();
  if (status.ok()) return 0;
  return report(status.error(), status.error().code == Code::kDenied ? kExitDenied : kExitFailed);
}

// Two daemons on one folder would remove each other's work and speak with one key.
Result<os::FolderLock> lock_state(const Config& config) {
  auto lock = os::FolderLock::take(config.text("state_dir"));
  if (lock.ok() || lock.error().code != Code::kExists) return lock;
  return make_error(Code::kExists, lock.error().message,
                    "stop that one first, or give this one another --state-dir");
}

int run(const Config& config) {
  auto member = load_membership(config.text("state_dir"));
  if (!member.ok()) return report(member.error(), kExitDenied);
  const auto lock = lock_state(config);
  if (!lock.ok()) return report(lock.error(), kExitFailed);
  return serve(config, std::move(*member));
}

int join(const Config& config, const Command& command) {
  std::string address = command.address;
  if (!command.address_file.empty()) {
    auto text = os::read_file(command.address_file, 4096);
    if (!text.ok()) return report(text.error(), kExitUsage);
    address = text->substr(0, text->find_first_of(" \r\n"));
  }
  if (address.empty()) {
    return report(
        make_error(Code::kInvalid, "no address to join", "get one with `weft peer invite`"),
        kExitUsage);
  }
  if (auto made = os::make_directories(config.text("state_dir"), 0700); !made.ok()) {
    return report(made.error(), kExitFailed);
  }
  const auto lock = lock_state(config);
  if (!lock.ok()) return report(lock.error(), kExitFailed);
  auto member = join_cluster(config.text("state_dir"), address,
                             config.text("name").empty() ? os::host_name() : config.text("name"));
  if (!member.ok()) return report(member.error(), kExitDenied);
  std::printf("joined as peer %s\n", member->peer.c_str());
  std::fflush(stdout);
  return command.no_run ? 0 : serve(config, std::move(*member));
}

}  // namespace

int main_of(int argc, char** argv) {
  Config config = make_config();
  Command command;
  CLI::App app{"weftd: lends this machine to a weft cluster"};
  app.set_version_flag("--version", std::string("weftd ") + kVersion);
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--config", command.config_file, "TOML file of settings");
  for (const Setting& setting : config.settings()) {
    app.add_option_function<std::string>(
        Config::flag_name(setting.name),
        [&command, name = setting.name](const std::string& value) {
          command.flags.emplace_back(name, value);
        },
        setting.help);
  }
  app.add_subcommand("run", "serve the cluster this machine has joined");
  auto* join_command = app.add_subcommand("join", "join a cluster, then serve it");
  auto* address =
      join_command->add_option("address", command.address, "weft://... from `weft peer invite`");
  join_command
      ->add_option(
          "--address-file", command.address_file,
          "a file that holds the address: arguments are visible to every user of a machine")
      ->excludes(address);
  join_command->add_flag("--no-run", command.no_run, "join only");
  auto* config_command = app.add_subcommand("config", "settings");
  config_command->require_subcommand(1);
  auto* show = config_command->add_subcommand("show", "print every setting and its value");
  show->add_flag("--origin", command.origin, "and where each value comes from");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : kExitUsage;
  }
  if (auto status = configure(config, command); !status.ok()) {
    return report(status.error(), kExitUsage);
  }
  if (show->parsed()) {
    std::printf("%s", config.show(command.origin).c_str());
    return 0;
  }
  return join_command->parsed() ? join(config, command) : run(config);
}

}  // namespace weft::daemon

int main(int argc, char** argv) {
  return weft::daemon::main_of(argc, argv);
}
