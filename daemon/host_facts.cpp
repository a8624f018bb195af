#include "daemon/host_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/log.h"
#include "base/os/net.h"
#include "base/os/process.h"

namespace weft::daemon {
namespace {

constexpr const char* kUnknownName = "NVIDIA GPU";
constexpr size_t kMaxListBytes = 65536;
constexpr int kListMs = 20000;  // a driver without persistence takes seconds; a broken one hangs

// A broken driver must not keep the daemon from ending for long.
constexpr int kFreeMs = 5000;

uint64_t mebibytes(std::string_view text) {
  return std::strtoull(std::string(text).c_str(), nullptr, 10) << 20;  // "[N/A]": 0
}

struct ListedCard {
  std::string index, uuid;
  Card card;
};

// Up to the next ", ", which is taken off as well.
std::string_view take_field(std::string_view& line) {
  const size_t end = std::min(line.find(", "), line.size());
  const std::string_view field = line.substr(0, end);
  line.remove_prefix(std::min(end + 2, line.size()));
  return field;
}

std::optional<ListedCard> card_of_line(std::string_view line) {
  ListedCard listed;
  listed.index = take_field(line);
  listed.uuid = take_field(line);
  const size_t free = line.rfind(", ");
  if (free == std::string_view::npos || free == 0) return std::nullopt;
  const size_t total = line.rfind(", ", free - 1);  // a name may hold commas
  if (total == std::string_view::npos) return std::nullopt;
  listed.card = {std::string(line.substr(0, total)), mebibytes(line.substr(total + 2)),
                 mebibytes(line.substr(free + 2))};
  return listed;
}

std::vector<ListedCard> cards_of_list(std::string_view list) {
  std::vector<ListedCard> cards;
  while (!list.empty()) {
    const size_t end = std::min(list.find('\n'), list.size());
    if (auto card = card_of_line(list.substr(0, end))) cards.push_back(std::move(*card));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return cards;
}

std::string_view trimmed(std::string_view word) {
  while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
  while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
  return word;
}

struct Visible {
  std::vector<ListedCard> cards;
  std::string part;  // the word that stands for a part of a card, which is not listed
};

// As CUDA reads the variable: what follows a word that names nothing does not count.
Visible visible_cards(const std::vector<ListedCard>& cards, std::string_view words) {
  Visible visible;
  while (!words.empty()) {
    const size_t end = std::min(words.find(','), words.size());
    const std::string_view word = trimmed(words.substr(0, end));
    const auto named = std::find_if(cards.begin(), cards.end(), [&](const ListedCard& card) {
      return card.index == word || (word.size() > 4 && card.uuid.starts_with(word));
    });
    if (named == cards.end()) {
      if (word.starts_with("MIG-")) visible.part = word;
      break;
    }
    visible.cards.push_back(*named);
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return visible;
}

const char* visible_by_environment() {
  return std::getenv("CUDA_VISIBLE_DEVICES");
}

Result<std::string> list_of_cards(int timeout_ms) {
  return os::output_of(
      {"/usr/bin/nvidia-smi", "--query-gpu=index,uuid,name,memory.total,memory.free",
       "--format=csv,noheader,nounits"},
      kMaxListBytes, timeout_ms);
}

std::optional<Card> card_of_machine(const std::string& device) {
  if (!std::filesystem::exists("/dev/nvidia0")) return std::nullopt;
  const auto list = list_of_cards(kListMs);
  if (!list.ok()) {
    log_warning("the card cannot be described: {}", list.error().text());
    return Card{kUnknownName, 0, 0};
  }
  auto card = card_of_list(*list, device, visible_by_environment());
  if (!card) log_warning("no card for device {} among those of nvidia-smi that CUDA shows", device);
  return card;
}

}  // namespace

std::optional<Card> card_of_list(std::string_view list, std::string_view device,
                                 const char* visible) {
  Visible shown{cards_of_list(list), ""};
  if (visible != nullptr && !shown.cards.empty()) shown = visible_cards(shown.cards, visible);
  const size_t colon = device.find(':');
  const std::string number(colon == std::string_view::npos ? "" : device.substr(colon + 1));
  const auto at = std::strtoull(number.c_str(), nullptr, 10);
  if (at < shown.cards.size()) return std::move(shown.cards[at].card);
  // What is measured of one part is kept for no other: the name is part of its key.
  if (!shown.part.empty()) return Card{fmt::format("{} {}", kUnknownName, shown.part), 0, 0};
  return std::nullopt;
}

uint64_t free_memory_bytes(const std::string& device) {
  if (device == "cpu") return os::available_memory_bytes();
  const auto list = list_of_cards(kFreeMs);
  const auto card =
      list.ok() ? card_of_list(*list, device, visible_by_environment()) : std::nullopt;
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
