// The .pt2 importer: PyTorch's export archive to a Graph. Reads the zip directory, models/*.json
// and the raw weight files; the pickle inside is never opened.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "opdag/graph.h"

namespace weft::opdag {

// An opened archive: bounds-checked, mapped read-only. Thread-compatible.
class Archive {
 public:
  // Errors: kCorrupt for a broken zip, path escapes, overlapping or oversized entries.
  static Result<Archive> open(const std::filesystem::path& path);

  // The bytes of the entry TOP/suffix (archives carry one top folder), checked against their CRC.
  // Stored entries are views of the mapping; deflated ones are inflated within bounds.
  // Errors: kNotFound, kCorrupt.
  Result<Buffer> entry(std::string_view suffix) const;
  bool has(std::string_view suffix) const;
  // Uncompressed size of an entry, without reading it.
  std::optional<uint64_t> size_of(std::string_view suffix) const;
  std::vector<std::string> names() const;  // full names, sorted

  struct State;
  explicit Archive(std::shared_ptr<const State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<const State> state_;
};

struct ImportOptions {
  // Keep nodes that use operators outside the allow-list instead of failing, so that
  // `weft model inspect` can list them all.
  bool keep_refused = false;
  // Samples of a micro-batch where the export leaves them open (open_batch.h); none: as many as the
  // example inputs had. Of no effect where the export fixes them.
  std::optional<int64_t> micro_batch = {};
};

// Imports, checks the allow-list, makes in-place operators functional (or groups what cannot be
// proven safe), finds tied weights, and validates. Errors carry node and op where one is to blame.
Result<Graph> import_graph(const Archive& archive, const ImportOptions& options = {});

}  // namespace weft::opdag
