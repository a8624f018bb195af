// What a worker's libraries open. A folder of a user appears only where libraries were loaded from
// it: the Python package that libtorch lies in.
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "base/os/jail.h"

namespace weft::os {
namespace {

constexpr const char* kRead[] = {
    "/usr", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/run/opengl-driver",
    // Of /proc the kernel itself guards other processes: a jailed one may not trace them.
    "/proc", "/proc/self/exe", "/sys",
    // The loader, name look-ups, time zones, OpenSSL, GPU drivers: nothing secret of /etc.
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",
    "/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf",
    "/etc/services", "/etc/protocols", "/etc/localtime", "/etc/timezone", "/etc/ssl/openssl.cnf",
    "/etc/ssl/certs", "/etc/pki/tls/openssl.cnf", "/etc/crypto-policies", "/etc/nvidia",
    "/etc/nvidia-imex", "/etc/OpenCL", "/etc/vulkan"};

constexpr const char* kDevices[] = {
    "/dev/null",    "/dev/zero",  "/dev/full",        "/dev/random",
    "/dev/urandom", "/dev/dri",   "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels",
    "/dev/dxg",     "/dev/nvmap", "/proc/self"};

// Shared memory, and where a CUDA multi-process service listens.
constexpr const char* kWrite[] = {"/dev/shm", "/tmp/nvidia-mps"};

std::string library_folder(const std::string& file) {
  for (const char* packages : {"/site-packages/", "/dist-packages/"}) {
    if (const size_t at = file.find(packages); at != std::string::npos) {
      return file.substr(0, at + std::string(packages).size() - 1);
    }
  }
  return file.substr(0, file.rfind('/'));
}

void add_library_folders(std::set<std::string>& folders) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path == std::string::npos || line.find(".so", path) == std::string::npos) continue;
    folders.insert(library_folder(line.substr(path)));
  }
  const char* listed = std::getenv("LD_LIBRARY_PATH");
  std::string rest = listed == nullptr ? "" : listed;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string folder = rest.substr(0, end);
    if (folder.size() > 1 && folder.front() == '/') folders.insert(folder);
    rest.erase(0, end + 1);
  }
}

}  // namespace

JailPolicy system_jail_policy() {
  JailPolicy policy;
  policy.read.assign(std::begin(kRead), std::end(kRead));
  std::set<std::string> folders;
  add_library_folders(folders);
  folders.erase("");
  policy.read.insert(policy.read.end(), folders.begin(), folders.end());
  policy.list.emplace_back("/dev");
  policy.devices.assign(std::begin(kDevices), std::end(kDevices));
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", code)) {
    if (entry.path().filename().string().starts_with("nvidia")) {
      policy.devices.push_back(entry.path());
    }
  }
  policy.write.assign(std::begin(kWrite), std::end(kWrite));
  return policy;
}

}  // namespace weft::os
