// Zip bombs and mis-sized weights: refused by what they claim, or stopped at what they claim.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <chrono>

#include "opdag/import.h"
#include "tests/support/pt2_model.h"
#include "tests/support/sanitized.h"

namespace weft::opdag {
namespace {

using ::testing::HasSubstr;
using testing::Json;
using testing::Pt2Model;
using weft::testing::ZipWriter;

uint64_t peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss);
}

Result<Archive> open_bytes(const std::string& bytes) {
  return Archive::open(ZipWriter::write(::testing::TempDir() + "hostile.zip", bytes));
}

TEST(HostileArchive, AClaimBeyondTheBoundIsRefusedUnread) {
  ZipWriter zip;
  zip.add("m/bomb", std::string(4 << 20, '\0'), true);
  zip.entries()[0].size = uint32_t{1200} << 20;
  const auto archive = open_bytes(zip.finish());
  ASSERT_FALSE(archive.ok());
  EXPECT_THAT(archive.error().message, HasSubstr("claims to inflate"));
}

// Sanitizers keep freed memory for a while, and a shadow of several times what is used.
constexpr uint64_t kAllowed = kThreadSanitized ? 4 : kSanitized ? 8 : 1;

// A description that is 64 MiB of one number's digits, 64 KiB packed.
TEST(HostileArchive, ABombForADescriptionCostsItsSizeAndNoMore) {
  // glibc learns from large blocks that are freed: without this, what tests did before decides
  // whether growing strings leave holes in the heap.
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  constexpr size_t kBomb = size_t{64} << 20;
  ZipWriter zip;
  zip.add("m/models/model.json", "{\"a\":" + std::string(kBomb, '1') + "}", true);
  zip.add("m/data/weights/model_weights_config.json", "{\"config\":{}}");
  zip.add("m/byteorder", "little");
  const std::string bytes = zip.finish();
  EXPECT_LT(bytes.size(), size_t{1} << 20);
  const auto archive = open_bytes(bytes);
  ASSERT_TRUE(archive.ok()) << archive.error().text();
  const uint64_t before_kib = peak_kib();
  const auto start = std::chrono::steady_clock::now();
  const auto graph = import_graph(*archive);
  ASSERT_FALSE(graph.ok());
  EXPECT_LT(peak_kib() - before_kib, kAllowed * 6 * kBomb / 1024);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(HostileArchive, EntriesThatShareTheirBytesAreRefused) {
  // The classic bomb of David Fifield: many names, one stream.
  ZipWriter zip;
  zip.add("m/a", std::string(1 << 20, '\0'), true);
  const auto first = zip.entries()[0];
  for (int i = 0; i < 100; ++i) zip.entries().push_back(first);
  const auto archive = open_bytes(zip.finish());
  ASSERT_FALSE(archive.ok());
  EXPECT_EQ(archive.error().code, Code::kCorrupt);
}

TEST(HostileArchive, WeightsOfAnotherSizeThanTheirFileAreRefused) {
  for (const size_t bytes : {size_t{0}, size_t{35}}) {
    Pt2Model model;
    model.files["weight_0"] = std::string(bytes, 'w');
    const auto graph = model.import();
    ASSERT_FALSE(graph.ok()) << bytes;
    EXPECT_EQ(graph.error().code, Code::kCorrupt);
    EXPECT_THAT(graph.error().message, HasSubstr("weight_0"));
  }
  Pt2Model missing;
  missing.files.erase("weight_0");
  EXPECT_FALSE(missing.import().ok());
}

// A view of another one's bytes, or of its own more than once: inside the file it is only shape.
TEST(HostileArchive, StridesOfWeightsStayInsideTheirFile) {
  const auto with = [](int64_t stride, int64_t offset) {
    Pt2Model model;
    auto& meta = model.weights["w"]["tensor_meta"];
    meta["strides"][0] = {{"as_int", stride}};
    meta["storage_offset"] = {{"as_int", offset}};
    return model.import();
  };
  EXPECT_FALSE(with(4, 0).ok());
  EXPECT_FALSE(with(3, 1).ok());
  EXPECT_FALSE(with(-3, 0).ok());
  EXPECT_FALSE(with(3, -1).ok());
  EXPECT_FALSE(with(INT64_MAX, 0).ok());
  EXPECT_FALSE(with(3, INT64_MAX).ok());
}

// As many parameters of one file as a description holds: looked at one by one, not in pairs.
TEST(HostileArchive, ManyParametersOfOneFileTakeLittleTime) {
  Pt2Model model;
  Json& specs = model.program["graph_module"]["signature"]["input_specs"];
  Json& values = model.program["graph_module"]["graph"]["tensor_values"];
  for (int i = 0; i < 20000; ++i) {
    const std::string name = "q" + std::to_string(i);
    specs.push_back({{"parameter", {{"arg", {{"name", name}}}, {"parameter_name", name}}}});
    values[name] = testing::meta({3, 3}, 7, true);
    model.weights[name] = testing::payload("weight_0", testing::meta({3, 3}, 7, true));
  }
  const auto start = std::chrono::steady_clock::now();
  const auto graph = model.import();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  EXPECT_EQ(graph->leaves.back().tied_group, graph->leaves.front().tied_group);
}

TEST(HostileArchive, TheEndOfAWeightMayOverflowWithoutHarm) {
  Pt2Model model;
  model.weights["w"]["tensor_meta"]["storage_offset"] = {{"as_int", INT64_MAX}};
  EXPECT_FALSE(model.import().ok());
}

TEST(HostileArchive, ShapesOfStrangersAreBounded) {
  const std::vector<Json> sizes = {{{"as_int", -1}},
                                   {{"as_int", INT64_MAX}},
                                   {{"as_int", int64_t{1} << 46}},
                                   {{"as_int", 1e300}},
                                   {{"as_int", "2"}},
                                   {{"as_expr", {{"expr_str", "s0"}}}},
                                   Json::object(),
                                   nullptr};
  for (const char* name : {"x", "p_w", "linear", "mean"}) {
    for (const Json& size : sizes) {
      Pt2Model model;
      auto& meta = model.value(name);
      meta["sizes"] = {size, size};
      meta["strides"] = {Json{{"as_int", 1}}, Json{{"as_int", 1}}};
      EXPECT_FALSE(model.import().ok()) << name << " " << size;
    }
    Pt2Model deep;
    deep.value(name)["sizes"] = Json(std::vector<Json>(1000, Json{{"as_int", 1}}));
    deep.value(name)["strides"] = deep.value(name)["sizes"];
    EXPECT_FALSE(deep.import().ok()) << name;
  }
}

// Names of outputs are made of the keys on their way: long keys times many leaves are a bomb.
TEST(HostileArchive, ManyOutputsWithLongNamesCostLittle) {
  Json leaves = Json::array(), keys = Json::array();
  const Json leaf = {{"type", nullptr}, {"context", nullptr}, {"children_spec", Json::array()}};
  for (int i = 0; i < 60000; ++i) {
    leaves.push_back(leaf);
    keys.push_back("same");
  }
  const Json inner = {
      {"type", "builtins.dict"}, {"context", keys.dump()}, {"children_spec", leaves}};
  const Json outer = {{"type", "builtins.dict"},
                      {"context", Json::array({std::string(1 << 20, 'k')}).dump()},
                      {"children_spec", Json::array({inner})}};
  Pt2Model model;
  model.program["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] =
      Json::array({1, outer}).dump();
  const uint64_t before_kib = peak_kib();
  const auto start = std::chrono::steady_clock::now();
  const auto graph = model.import();
  EXPECT_TRUE(graph.ok()) << graph.error().text();  // outputs are numbered then
  EXPECT_LT(peak_kib() - before_kib, kAllowed * (512u << 10));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(HostileArchive, CyclesAndDanglingNamesAreRefusedByName) {
  const auto reads = [](size_t node, const char* name) {
    Pt2Model model;
    model.nodes()[node]["inputs"][0]["arg"]["as_tensor"]["name"] = name;
    return model.import();
  };
  for (const auto& graph : {reads(2, "linear"), reads(2, "linear_1"), reads(2, "nobody")}) {
    ASSERT_FALSE(graph.ok());
    EXPECT_NE(graph.error().message.find("linear") == std::string::npos,
              graph.error().message.find("nobody") == std::string::npos)
        << graph.error().message;
  }
  Pt2Model twice;
  twice.nodes()[5]["outputs"] = twice.nodes()[2]["outputs"];
  EXPECT_FALSE(twice.import().ok());
  Pt2Model nothing;
  nothing.program["graph_module"]["signature"]["output_specs"][1]["user_output"]["arg"] =
      testing::tensor("nobody");
  EXPECT_FALSE(nothing.import().ok());
}

}  // namespace
}  // namespace weft::opdag
