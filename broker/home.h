// Home: the broker's state folder: its CA, its keys, the administrator's token, the lock that keeps
// a second broker out (base/os/folder_lock.h), broker.json for those who look for a running one.
#pragma once

#include <string>

#include "base/os/file.h"
#include "net/identity/authority.h"

namespace weft::broker {

struct Home {
  os::Path dir;
  net::Authority authority;
  net::CurveKeys curve;
  net::KeyPair server_key;  // of the HTTPS server
  std::string admin_token;
};

// Loads what is there and makes what is missing; private files are 0600, the folder 0700.
Result<Home> open_home(const os::Path& dir);
// A new token; the old one stops working when the broker restarts.
Result<std::string> renew_token(const os::Path& dir);

struct RunningBroker {
  uint16_t http_port = 0, control_port = 0;
  std::string ca_fingerprint;
};
Status write_running(const os::Path& dir, const RunningBroker& running);
void remove_running(const os::Path& dir);
Result<RunningBroker> read_running(const os::Path& dir);  // kNotFound: none runs

// What a user types elsewhere: weft login https://HOST:PORT --ca-pin PIN --token TOKEN
std::string login_command(const std::string& host, uint16_t port, const std::string& ca_fingerprint,
                          const std::string& token);

// From the system's random device.
std::string random_hex(size_t bytes);

}  // namespace weft::broker
