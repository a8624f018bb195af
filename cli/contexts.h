// Logins: which brokers the user knows and how to speak to them, in <config>/contexts.json (0600,
// it holds tokens). One is current.
#pragma once

#include <map>
#include <string>

#include "base/result.h"

namespace weft::cli {

struct Context {
  std::string host;
  uint16_t port = 0;
  std::string ca_fingerprint;
  std::string token;
};

struct Contexts {
  std::string current;
  std::map<std::string, Context> by_name;
};

Result<Contexts> load_contexts();
Status save_contexts(const Contexts& contexts);
// Adds or replaces a login and makes it current.
Status remember_context(const std::string& name, const Context& context);
Status forget_context(const std::string& name);

// The named login, or the current one. kNotFound says how to log in.
Result<Context> find_context(const std::string& name);

}  // namespace weft::cli
