#include "daemon/host_facts.h"

#include <filesystem>

#include "base/log.h"
#include "base/os/net.h"
#include "base/os/process.h"

namespace weft::daemon {
namespace {

constexpr size_t kMaxListBytes = 65536;
constexpr int kListMs = 20000;  // a driver without persistence takes seconds; a broken one hangs

struct Card {
  std::string name;
  uint64_t memory_bytes = 0;
};

// The first card as nvidia-smi lists it: "NVIDIA H100 80GB HBM3, 81559".
std::optional<Card> first_card() {
  if (!std::filesystem::exists("/dev/nvidia0")) return std::nullopt;
  const auto text = os::output_of(
      {"/usr/bin/nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"},
      kMaxListBytes, kListMs);
  if (!text.ok()) {
    log_warning("the card cannot be described: {}", text.error().text());
    return Card{"NVIDIA GPU", 0};
  }
  const std::string line = text->substr(0, text->find('\n'));
  const size_t comma = line.rfind(", ");
  if (comma == std::string::npos) return Card{"NVIDIA GPU", 0};
  const uint64_t mebibytes = std::strtoull(line.c_str() + comma + 2, nullptr, 10);
  return Card{line.substr(0, comma), mebibytes << 20};
}

}  // namespace

proto::Capabilities host_capabilities(const std::string& device, const std::string& name) {
  proto::Capabilities facts;
  facts.set_host(name.empty() ? os::host_name() : name);
  facts.set_cores(static_cast<uint32_t>(os::hardware_cores()));
  facts.set_memory_bytes(os::total_memory_bytes());
  facts.set_device("cpu");
  if (device != "cpu") {
    if (auto card = first_card()) {
      facts.set_device(device == "auto" ? "cuda:0" : device);
      facts.set_device_name(card->name);
      facts.set_device_memory_bytes(card->memory_bytes);
    } else if (device != "auto") {
      facts.set_device(device);  // the worker will say what is wrong with it
    }
  }
  return facts;
}

std::string route_address(const std::string& host, uint16_t port) {
  return os::local_address_towards(host, port).value_or("127.0.0.1");
}

}  // namespace weft::daemon
