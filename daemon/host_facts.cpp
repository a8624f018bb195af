#include "daemon/host_facts.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/log.h"
#include "base/os/net.h"
#include "base/os/process.h"

namespace weft::daemon {
namespace {

constexpr size_t kMaxListBytes = 65536;
constexpr int kListMs = 20000;  // a driver without persistence takes seconds; a broken one hangs

// A broken driver must not keep the daemon from ending for long.
constexpr int kFreeMs = 5000;

uint64_t mebibytes(std::string_view text) {
  return std::strtoull(std::string(text).c_str(), nullptr, 10) << 20;  // "[N/A]": 0
}

std::optional<Card> card_of_line(std::string_view line) {
  const size_t free = line.rfind(", ");
  if (free == std::string_view::npos || free == 0) return std::nullopt;
  const size_t total = line.rfind(", ", free - 1);
  if (total == std::string_view::npos) return std::nullopt;
  return Card{std::string(line.substr(0, total)), mebibytes(line.substr(total + 2)),
              mebibytes(line.substr(free + 2))};
}

Result<std::string> list_of_cards(int timeout_ms) {
  return os::output_of({"/usr/bin/nvidia-smi", "--query-gpu=name,memory.total,memory.free",
                        "--format=csv,noheader,nounits"},
                       kMaxListBytes, timeout_ms);
}

std::optional<Card> card_of_machine(const std::string& device) {
  if (!std::filesystem::exists("/dev/nvidia0")) return std::nullopt;
  const Card unknown{"NVIDIA GPU", 0, 0};
  const auto list = list_of_cards(kListMs);
  if (!list.ok()) {
    log_warning("the card cannot be described: {}", list.error().text());
    return unknown;
  }
  return card_of_list(*list, device).value_or(unknown);
}

}  // namespace

std::optional<Card> card_of_list(std::string_view list, std::string_view device) {
  const size_t colon = device.find(':');
  const std::string number(colon == std::string_view::npos ? "" : device.substr(colon + 1));
  auto left = std::strtoull(number.c_str(), nullptr, 10);
  std::optional<Card> first;
  while (!list.empty()) {
    const size_t end = std::min(list.find('\n'), list.size());
    auto card = card_of_line(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
    if (!card) continue;
    if (left-- == 0) return card;
    if (!first) first = std::move(card);
  }
  return first;
}

uint64_t free_memory_bytes(const std::string& device) {
  if (device == "cpu") return os::available_memory_bytes();
  const auto list = list_of_cards(kFreeMs);
  const auto card = list.ok() ? card_of_list(*list, device) : std::nullopt;
  return card ? card->free_bytes : 0;
}

proto::Capabilities host_capabilities(const std::string& device, const std::string& name) {
  proto::Capabilities facts;
  facts.set_host(name.empty() ? os::host_name() : name);
  facts.set_cores(static_cast<uint32_t>(os::hardware_cores()));
  facts.set_memory_bytes(os::total_memory_bytes());
  facts.set_device("cpu");
  facts.set_free_memory_bytes(os::available_memory_bytes());
  if (device != "cpu") {
    if (auto card = card_of_machine(device)) {
      facts.set_device(device == "auto" ? "cuda:0" : device);
      facts.set_device_name(card->name);
      facts.set_device_memory_bytes(card->memory_bytes);
      facts.set_free_memory_bytes(card->free_bytes);
    } else if (device != "auto") {
      facts.set_device(device);  // the worker will say what is wrong with it
      facts.set_free_memory_bytes(0);
    }
  }
  return facts;
}

std::string route_address(const std::string& host, uint16_t port) {
  return os::local_address_towards(host, port).value_or("127.0.0.1");
}

}  // namespace weft::daemon
