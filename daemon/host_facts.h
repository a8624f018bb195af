// What this machine tells the cluster about itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "net/proto/control.pb.h"

namespace weft::daemon {

struct Card {
  std::string name;
  uint64_t memory_bytes = 0, free_bytes = 0;  // 0: unknown
};

// The card of device "cuda:N" (without a number the first) in what nvidia-smi lists, one a line:
// index, UUID, name, MiB in all, MiB free; nullopt where there is none. visible: the value of
// CUDA_VISIBLE_DEVICES (indices, beginnings of UUIDs), nullptr where it is not set; of a part of
// a card (MIG) nothing is known but that it is there. CUDA counts as nvidia-smi does, for workers
// run with CUDA_DEVICE_ORDER=PCI_BUS_ID (worker_process.cpp).
std::optional<Card> card_of_list(std::string_view list, std::string_view device,
                                 const char* visible);

// Of the device that computes ("cpu", "cuda:N"); 0: cannot be told. Blocks for seconds where a card
// answers slowly.
uint64_t free_memory_bytes(const std::string& device);

// Cores, memory, card; device "auto" becomes "cuda:0" where a card answers, else "cpu".
proto::Capabilities host_capabilities(const std::string& device, const std::string& name);

// The address of this machine on the route towards host; "127.0.0.1" where it cannot be told.
std::string route_address(const std::string& host, uint16_t port);

}  // namespace weft::daemon
