// A whole .pt2 file: the zip directory, every entry, then the import.
#include "opdag/import.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/pt2_model.h"

namespace weft::fuzz {

using opdag::testing::Json;
using opdag::testing::Pt2Model;
using weft::testing::ZipWriter;

namespace {

std::string zipped(const Pt2Model& model, bool deflate) {
  ZipWriter zip;
  for (const auto& [name, bytes] : model.files) zip.add("m/data/weights/" + name, bytes, deflate);
  zip.add("m/data/weights/model_weights_config.json", Json{{"config", model.weights}}.dump());
  zip.add("m/models/model.json", model.program.dump(), deflate);
  zip.add("m/byteorder", "little");
  return zip.finish();
}

}  // namespace

std::vector<std::string> seeds() {
  ZipWriter plain;
  plain.add("m/a", "text");
  plain.add("m/b", std::string(4000, 'b'), true);
  return {zipped(Pt2Model(), false), zipped(Pt2Model(), true), plain.finish(),
          ZipWriter().finish()};
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  constexpr uint64_t kMostInflated = 1 << 20;  // claims beyond are the archive's own test
  const fuzz::MemoryFile file(fuzz::text_of(data, size));
  const auto archive = opdag::Archive::open(file.path());
  if (!archive.ok()) return 0;
  for (const std::string& name : archive->names()) {
    const std::string suffix = name.substr(name.find('/') + 1);
    const auto claimed = archive->size_of(suffix);
    if (!claimed || *claimed > kMostInflated) continue;
    const auto bytes = archive->entry(suffix);
    WEFT_CHECK(!bytes.ok() || bytes->size() == *claimed);
  }
  (void)opdag::import_graph(*archive);
  return 0;
}
