#include "broker/planner/compression_file.h"

#include <fmt/format.h>

#include "base/toml_table.h"

namespace weft::broker {
namespace {

constexpr const char* kPolicies =
    "set policy to one of: none (everything is sent as it is), assumed (a codec of numbers of your "
    "own)";

Compression read_assumed(TomlTable& reader) {
  AssumedCodec codec;
  if (!reader.has("ratio")) reader.refuse("the assumed codec has no ratio");
  codec.ratio = reader.number("ratio", codec.ratio, 1e-4, 1);
  codec.gbyte_s = reader.number("gbyte_s", 0, 1e-3, 1e6);
  codec.below_mbit_s = reader.number("below_mbit_s", 0, 1e-3, 1e9);
  return assumed_compression(codec);
}

}  // namespace

Result<Compression> read_compression(const toml::table& table, const std::string& what) {
  TomlTable reader(table, what);
  const std::string policy = reader.text("policy");
  Compression compression;
  if (policy == "assumed") {
    compression = read_assumed(reader);
  } else if (policy != "none") {
    if (policy.empty()) reader.refuse("it names no policy");
    reader.refuse(fmt::format("there is no policy \"{}\"", policy));
    return reader.status(kPolicies).error();
  }
  WEFT_TRY_STATUS(reader.status("see docs/planning.md, \"Compression\", for the keys"));
  return compression;
}

Result<Compression> parse_compression(std::string_view text, const std::string& source) {
  WEFT_TRY(const toml::table document, parse_toml(text, source));
  return read_compression(document, source);
}

}  // namespace weft::broker
