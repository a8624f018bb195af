#include "broker/home.h"

#include <fmt/format.h>
#include <openssl/rand.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "base/hash.h"

namespace weft::broker {
namespace {

constexpr unsigned kPrivate = 0600;

// The file's content, or what make() gives, written down.
template <typename Make>
Result<std::string> load_or_make(const os::Path& path, Make make) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    WEFT_TRY(std::string text, os::read_file(path, 65536));
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (text.empty()) {
      return make_error(Code::kCorrupt, fmt::format("{} is empty", path.string()),
                        "remove it to have a new one made");
    }
    return text;
  }
  WEFT_TRY(std::string made, make());
  WEFT_TRY_STATUS(os::write_file_atomic(path, made + "\n", kPrivate));
  return made;
}

}  // namespace

std::string random_hex(size_t bytes) {
  std::vector<std::byte> data(bytes);
  WEFT_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(data.data()), static_cast<int>(bytes)) ==
             1);
  return to_hex(data);
}

Result<Home> open_home(const os::Path& dir) {
  WEFT_TRY_STATUS(os::make_directories(dir, 0700));
  WEFT_TRY(net::Authority authority, net::Authority::open(dir / "ca"));
  WEFT_TRY(const std::string secret, load_or_make(dir / "curve.key", []() -> Result<std::string> {
             return net::make_curve_keys().secret_z85;
           }));
  WEFT_TRY(const std::string open, net::curve_public(secret));
  WEFT_TRY(std::string key, load_or_make(dir / "broker.key", []() -> Result<std::string> {
             WEFT_TRY(net::KeyPair pair, net::make_key());
             return pair.private_pem;
           }));
  WEFT_TRY(std::string token, load_or_make(dir / "admin.token",
                                           []() -> Result<std::string> { return random_hex(32); }));
  return Home{dir, std::move(authority), net::CurveKeys{open, secret}, net::KeyPair{key + "\n", ""},
              std::move(token)};
}

Result<std::string> renew_token(const os::Path& dir) {
  const std::string token = random_hex(32);
  WEFT_TRY_STATUS(os::write_file_atomic(dir / "admin.token", token + "\n", kPrivate));
  return token;
}

Status write_running(const os::Path& dir, const RunningBroker& running) {
  const nlohmann::json json = {{"http_port", running.http_port},
                               {"control_port", running.control_port},
                               {"ca_fingerprint", running.ca_fingerprint}};
  return os::write_file_atomic(dir / "broker.json", json.dump(2) + "\n");
}

void remove_running(const os::Path& dir) {
  (void)os::remove_all(dir / "broker.json");
}

std::string login_command(const std::string& host, uint16_t port, const std::string& ca_fingerprint,
                          const std::string& token) {
  const bool bare_v6 = host.find(':') != std::string::npos && !host.starts_with('[');
  return fmt::format("weft login https://{}:{} --ca-pin {} --token {}",
                     bare_v6 ? "[" + host + "]" : host, port, ca_fingerprint, token);
}

Result<RunningBroker> read_running(const os::Path& dir) {
  WEFT_TRY(const std::string text, os::read_file(dir / "broker.json", 65536));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.value("http_port", nlohmann::json()).is_number_unsigned() ||
      !json.value("control_port", nlohmann::json()).is_number_unsigned() ||
      !json.value("ca_fingerprint", nlohmann::json()).is_string()) {
    return make_error(Code::kCorrupt,
                      fmt::format("{} is not what a broker writes", (dir / "broker.json").string()),
                      "restart the broker");
  }
  return RunningBroker{json["http_port"].get<uint16_t>(), json["control_port"].get<uint16_t>(),
                       json["ca_fingerprint"].get<std::string>()};
}

}  // namespace weft::broker
