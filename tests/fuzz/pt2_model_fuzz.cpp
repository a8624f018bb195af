// The description inside a .pt2, and all that happens to an imported graph before it runs. Parted
// by zero bytes: models/model.json, the table of weights (the hand-made model's if absent), the
// micro-batch in decimal (that of the export if absent).
#include <charconv>

#include "tests/fuzz/fuzz_model.h"
#include "tests/support/open_model.h"

namespace weft::fuzz {

using namespace std::string_literals;
using opdag::testing::Json;
using opdag::testing::Pt2Model;

namespace {

// What stands before the next zero byte, and no more in `left`; all of it when there is none.
std::string_view next_part(std::string_view& left) {
  const size_t end = std::min(left.find('\0'), left.size());
  const std::string_view part = left.substr(0, end);
  left.remove_prefix(std::min(end + 1, left.size()));
  return part;
}

std::optional<int64_t> number_of(std::string_view text) {
  int64_t number = 0;
  const auto [stop, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc() ? std::optional(number) : std::nullopt;
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> made;
  const auto add = [&](const Pt2Model& model) {
    made.push_back(model.program.dump() + '\0' + Json{{"config", model.weights}}.dump());
  };
  Pt2Model model;
  add(model);
  model.nodes().erase(0);
  add(model);
  Pt2Model alone;  // of all sizes only one of the input's is symbolic
  alone.value("x")["sizes"][0] = {{"as_expr", {{"expr_str", "s0"}, {"hint", {{"as_int", 2}}}}}};
  add(alone);
  using opdag::testing::add_assertion, opdag::testing::add_region, opdag::testing::open_model,
      opdag::testing::symbolic;
  Pt2Model open = open_model();
  for (const char* batch : {"", "7"}) made.push_back(open.program.dump() + "\0\0"s + batch);
  add_assertion(open);
  add_region(open, symbolic("$"), true);
  made.push_back(open.program.dump() + "\0\0"s + "5");
  using opdag::testing::argument, opdag::testing::node, opdag::testing::tensor;
  using opdag::testing::meta;
  const Json body = {{"inputs", Json::array({tensor("inner")})},
                     {"outputs", Json::array({tensor("inner_1")})},
                     {"nodes", Json::array({node("torch.ops.aten.sin.default",
                                                 Json::array({argument("self", tensor("inner"))}),
                                                 Json::array({tensor("inner_1")}))})},
                     {"tensor_values", {{"inner", meta({2, 3})}, {"inner_1", meta({2, 3})}}}};
  Pt2Model region;
  region.nodes()[4] =
      node("torch.ops.higher_order.wrap_with_set_grad_enabled",
           Json::array({argument("", {{"as_bool", false}}),
                        argument("", {{"as_graph", {{"name", "submod_1"}, {"graph", body}}}}),
                        argument("", tensor("linear"))}),
           Json::array({tensor("dropout")}));
  add(region);
  return made;
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  std::string_view left = fuzz::text_of(data, size);
  static const std::string kWeights =
      opdag::testing::Json{{"config", opdag::testing::Pt2Model().weights}}.dump();
  const std::string_view program = fuzz::next_part(left);
  const std::string_view weights = fuzz::next_part(left);
  const fuzz::MemoryFile file(
      fuzz::zipped(program, weights.empty() ? std::string_view(kWeights) : weights));
  const auto archive = opdag::Archive::open(file.path());
  WEFT_CHECK(archive.ok());
  opdag::ImportOptions options;
  options.micro_batch = fuzz::number_of(left);
  const auto graph = opdag::import_graph(*archive, options);
  if (graph.ok()) fuzz::use(*graph);
  options.keep_refused = true;
  (void)opdag::import_graph(*archive, options);
  return 0;
}
