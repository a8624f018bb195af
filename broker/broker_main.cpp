// weft-broker run | init | token | config: the broker's program. Exit codes: 0 ended as told, 1 an
// error (on standard error, with what to do), 2 wrong use.
#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <future>
#include <map>

#include "base/log.h"
#include "base/os/folder_lock.h"
#include "base/os/notify.h"
#include "base/os/process.h"
#include "base/os/signals.h"
#include "base/version.h"
#include "broker/home.h"
#include "broker/service.h"
#include "broker/settings.h"

namespace weft::broker {
namespace {

int report(const Error& error) {
  fmt::print(stderr, "weft-broker: {}\n", error.text());
  return 1;
}

Result<LogLevel> log_level(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return make_error(Code::kInvalid, fmt::format("log_level is {}", name),
                    "use debug, info, warning or error");
}

Status run(const Config& config) {
  WEFT_TRY(const LogLevel level, log_level(config.text("log_level")));
  log_init("weft-broker", level, config.boolean("log_json"));
  std::promise<int> told_to_end;
  std::atomic<bool> told{false};
  os::SignalWatcher signals([&](int signal) {
    if (signal == SIGHUP) return;
    if (!told.exchange(true)) told_to_end.set_value(signal);
  });
  const os::Path dir = state_dir(config);
  WEFT_TRY_STATUS(os::make_directories(dir, 0700));
  const auto lock = os::FolderLock::take(dir);
  if (!lock.ok()) {
    if (lock.error().code != Code::kExists) return lock.error();
    return make_error(Code::kExists, fmt::format("a broker already runs on {}", dir.string()),
                      "stop it first, or choose another --state-dir");
  }
  remove_running(dir);
  WEFT_TRY(Home home, open_home(dir));
  const std::string fingerprint = home.authority.fingerprint();
  const SystemClock clock;
  WEFT_TRY(ServiceOptions options, service_options(config));
  for (const std::string& note : options.core.known.notes) log_warning("{}", note);
  WEFT_TRY(auto service, Service::start(std::move(home), std::move(options), clock));
  WEFT_TRY_STATUS(write_running(
      dir, RunningBroker{service->http_port(), service->control_port(), fingerprint}));
  log_info("broker {} ready: https port {}, control port {}, CA {}", kVersion, service->http_port(),
           service->control_port(), fingerprint);
  os::notify_service_manager("READY=1");
  const int signal = told_to_end.get_future().get();
  os::notify_service_manager("STOPPING=1");
  log_info("signal {}: stopping", signal);
  service->stop();
  remove_running(dir);
  return {};
}

Status init(const Config& config) {
  WEFT_TRY(const Home home, open_home(state_dir(config)));
  fmt::print("state folder    {}\nCA fingerprint  {}\nadmin token     {}\n", home.dir.string(),
             home.authority.fingerprint(), (home.dir / "admin.token").string());
  return {};
}

// The command that logs a user in, ready to be copied to another machine.
Status token(const Config& config, bool renew) {
  const os::Path dir = state_dir(config);
  WEFT_TRY(const ServiceOptions options, service_options(config));
  uint16_t port = options.http_port;
  if (const auto running = read_running(dir); running.ok()) port = running->http_port;
  if (port == 0) {
    return make_error(
        Code::kUnavailable,
        "the port is chosen when the broker starts, and no broker runs on " + dir.string(),
        "start it, or set http_port");
  }
  WEFT_TRY(Home home, open_home(dir));
  if (renew) {
    WEFT_TRY(home.admin_token, renew_token(dir));
  }
  fmt::print("{}\n", login_command(client_host(options, os::host_name()), port,
                                   home.authority.fingerprint(), home.admin_token));
  return {};
}

int main_of(int argc, char** argv) {
  Config config = make_config();
  CLI::App app("weft-broker: who is here, who does what");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  std::string file;
  bool renew = false, origin = false;
  std::map<std::string, std::string> flags;
  const auto verb = [&](const char* name, const char* help) {
    CLI::App* sub = app.add_subcommand(name, help);
    sub->add_option("--config", file, "TOML file with settings");
    for (const Setting& setting : config.settings()) {
      sub->add_option_function<std::string>(
          Config::flag_name(setting.name),
          [&flags, key = setting.name](const std::string& value) { flags[key] = value; },
          setting.help);
    }
    return sub;
  };
  CLI::App* run_verb = verb("run", "run the broker in the foreground");
  CLI::App* init_verb = verb("init", "make the CA, the keys and the administrator's token");
  CLI::App* token_verb = verb("token", "print the login command with the administrator's token");
  token_verb->add_flag("--renew", renew, "make a new one (restart the broker to use it)");
  CLI::App* config_verb = verb("config", "show the settings");
  config_verb->add_flag("--origin", origin, "and where each comes from");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  const Status loaded = [&]() -> Status {
    if (!file.empty()) {
      WEFT_TRY_STATUS(config.load_file(file));
    }
    WEFT_TRY_STATUS(config.load_environment());
    for (const auto& [name, value] : flags) WEFT_TRY_STATUS(config.set_flag(name, value));
    return {};
  }();
  if (!loaded.ok()) {
    report(loaded.error());
    return 2;
  }
  Status done;
  if (run_verb->parsed()) done = run(config);
  if (init_verb->parsed()) done = init(config);
  if (token_verb->parsed()) done = token(config, renew);
  if (config_verb->parsed()) fmt::print("{}", config.show(origin));
  return done.ok() ? 0 : report(done.error());
}

}  // namespace
}  // namespace weft::broker

int main(int argc, char** argv) {
  return weft::broker::main_of(argc, argv);
}
