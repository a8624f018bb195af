#include "broker/home.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/rand.h>
#include <sys/file.h>
#include <unistd.h>

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

Result<FolderLock> FolderLock::take(const os::Path& dir) {
  const std::string path = (dir / "lock").string();
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kPrivate);
  if (fd < 0) {
    return make_error(Code::kIo, fmt::format("cannot open {}", path), "check the state folder");
  }
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    return make_error(Code::kExists, fmt::format("a broker already runs on {}", dir.string()),
                      "stop it first, or choose another --state-dir");
  }
  return FolderLock(fd);
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

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
                               {"ca_fingerprint", running.ca_fingerprint},
                               {"pid", ::getpid()}};
  return os::write_file_atomic(dir / "broker.json", json.dump(2) + "\n");
}

void remove_running(const os::Path& dir) {
  (void)os::remove_all(dir / "broker.json");
}

}  // namespace weft::broker
