// The description inside a .pt2 (models/model.json and the table of weights, split by a zero
// byte), and all that happens to an imported graph before it runs: derived graphs, cuts, text.
#include "base/rng.h"
#include "opdag/cut.h"
#include "opdag/derive.h"
#include "opdag/import.h"
#include "opdag/inspect.h"
#include "opdag/op_table.h"
#include "opdag/text.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/pt2_model.h"

namespace weft::fuzz {

using opdag::testing::Json;
using opdag::testing::Pt2Model;
using weft::testing::ZipWriter;

namespace {

std::string zipped(std::string_view program, std::string_view weights) {
  ZipWriter zip;
  zip.add("m/data/weights/weight_0", std::string(36, 'w'));
  zip.add("m/data/weights/weight_1", std::string(8, 'n'));
  zip.add("m/data/weights/model_weights_config.json", std::string(weights));
  zip.add("m/models/model.json", std::string(program));
  zip.add("m/byteorder", "little");
  return zip.finish();
}

void use(const opdag::Graph& graph) {
  auto text = opdag::to_text(graph);
  auto again = opdag::parse_text(text);
  WEFT_CHECK(again.ok() && *again == graph);
  (void)opdag::derive_eval(graph);
  (void)opdag::promote_f64(graph);
  const auto pruned = opdag::prune_to(graph, {});
  if (!pruned.ok()) return;
  for (const opdag::Node& node : pruned->nodes) (void)opdag::node_cost(*pruned, node);
  Rng rng(1);
  const auto cut = opdag::random_partition(*pruned, 2, rng);
  if (!cut.ok()) return;
  WEFT_CHECK(opdag::check_partition(*pruned, *cut).ok());
  for (int32_t stage = 0; stage < 2; ++stage) (void)opdag::extract_stage(*pruned, *cut, stage);
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
  Pt2Model symbolic;
  symbolic.value("x")["sizes"][0] = {{"as_expr", {{"expr_str", "s0"}, {"hint", {{"as_int", 2}}}}}};
  add(symbolic);
  Pt2Model open;
  const std::string batch = "Symbol('s0', positive=True, integer=True)";
  const auto expression = [](const std::string& text) {
    Json json = Json::object();
    json["as_expr"] = {{"expr_str", text}, {"hint", {{"as_int", 2}}}};
    return json;
  };
  for (const char* name : {"x", "linear", "relu_", "dropout", "linear_1"}) {
    open.value(name)["sizes"][0] = expression(batch);
  }
  open.program["graph_module"]["graph"]["sym_int_values"]["n"] =
      expression("FloorDiv(Mul(Integer(6), " + batch + "), Integer(2))");
  open.program["range_constraints"] = {{"s0", {{"min_val", 0}, {"max_val", 64}}}};
  add(open);
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
  const std::string_view input = fuzz::text_of(data, size);
  const size_t end = std::min(input.find('\0'), input.size());
  static const std::string kWeights =
      opdag::testing::Json{{"config", opdag::testing::Pt2Model().weights}}.dump();
  const std::string_view weights =
      end < input.size() ? input.substr(end + 1) : std::string_view(kWeights);
  const fuzz::MemoryFile file(fuzz::zipped(input.substr(0, end), weights));
  const auto archive = opdag::Archive::open(file.path());
  WEFT_CHECK(archive.ok());
  const auto graph = opdag::import_graph(*archive);
  if (graph.ok()) fuzz::use(*graph);
  opdag::ImportOptions lenient;
  lenient.keep_refused = true;
  (void)opdag::import_graph(*archive, lenient);
  return 0;
}
