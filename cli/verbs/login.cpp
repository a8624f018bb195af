// weft login https://host:port --ca-pin FINGERPRINT --token TOKEN
#include <fmt/format.h>

#include "base/hash.h"
#include "base/os/file.h"
#include "cli/api_client.h"

namespace weft::cli {
namespace {

struct Options {
  std::string url, pin, token, token_file, name = "default";
};

Result<Context> parse(const Options& options) {
  const std::string scheme = "https://";
  std::string rest = options.url;
  if (rest.starts_with(scheme)) rest = rest.substr(scheme.size());
  while (rest.ends_with('/')) rest.pop_back();
  const size_t colon = rest.rfind(':');
  Context context;
  char* end = nullptr;
  const long port =
      colon == std::string::npos ? 0 : std::strtol(rest.c_str() + colon + 1, &end, 10);
  if (port <= 0 || port > 65535 || *end != '\0') {
    return make_error(Code::kInvalid, fmt::format("{} is not https://HOST:PORT", options.url));
  }
  context.host = rest.substr(0, colon);
  if (context.host.starts_with('[') && context.host.ends_with(']')) {
    context.host = context.host.substr(1, context.host.size() - 2);
  }
  context.port = static_cast<uint16_t>(port);
  if (!is_sha256_hex(options.pin)) {
    return make_error(Code::kInvalid, "--ca-pin is not 64 hexadecimal digits",
                      "`weft-broker token` prints the pin and the token on the broker's machine");
  }
  context.ca_fingerprint = options.pin;
  context.token = options.token;
  if (!options.token_file.empty()) {
    WEFT_TRY(context.token, os::read_file(options.token_file, 4096));
    while (!context.token.empty() &&
           std::isspace(static_cast<unsigned char>(context.token.back()))) {
      context.token.pop_back();
    }
  }
  return context;
}

// A login is kept only after the broker has accepted it.
Status login(const Options& options, Globals& globals) {
  WEFT_TRY(Context context, parse(options));
  ApiClient client(context);
  WEFT_TRY(nlohmann::json cluster, client.get("/api/v1/cluster"));
  WEFT_TRY_STATUS(remember_context(options.name, context));
  if (globals.json()) {
    print_json(cluster);
  } else {
    fmt::print("logged in to {}:{} as {} (weft {})\n", context.host, context.port, options.name,
               cluster.value("version", "?"));
  }
  return {};
}

}  // namespace

void add_login(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<Options>();
  auto* verb = app.add_subcommand("login", "use this command line against a broker");
  verb->add_option("url", options->url, "https://HOST:PORT of the broker")->required();
  verb->add_option("--ca-pin", options->pin, "fingerprint of the cluster's CA")->required();
  auto* token = verb->add_option("--token", options->token, "bearer token");
  verb->add_option("--token-file", options->token_file, "file with the token")->excludes(token);
  verb->add_option("--name", options->name, "what to call this login");
  verb->callback([=, &globals] { run_verb(globals, [&] { return login(*options, globals); }); });
}

}  // namespace weft::cli
