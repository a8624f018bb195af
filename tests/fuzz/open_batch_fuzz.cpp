// The numbers of an open batch (torch.export.Dim): a line for the micro-batch, the least and the
// most the export allows, and one for each of six expressions that stand where the hand-made open
// model has numbers ($ is the batch's symbol). Closed, the model is what an export with that batch
// would have been, or it is refused.
#include <array>
#include <charconv>

#include "opdag/open_batch.h"
#include "opdag/sympy.h"
#include "tests/fuzz/fuzz_model.h"
#include "tests/support/open_model.h"

namespace weft::fuzz {
namespace {

namespace model = opdag::testing;
using model::Json;
using opdag::SymbolicNumber;

enum Place { kViewRows, kFactor, kAsserted, kSize, kStride, kOffset, kPlaces };

struct Input {
  int64_t batch = 0;
  std::optional<int64_t> least, most;
  std::array<std::string, kPlaces> expressions;
};

std::string line_of(std::string_view& left) {
  const size_t end = std::min(left.find('\n'), left.size());
  std::string line(left.substr(0, end));
  left.remove_prefix(std::min(end + 1, left.size()));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';  // JSON is UTF-8
  }
  return line;
}

std::optional<int64_t> number_of(const std::string& line) {
  int64_t number = 0;
  const auto [stop, code] = std::from_chars(line.data(), line.data() + line.size(), number);
  return code == std::errc() ? std::optional(number) : std::nullopt;
}

Input read(std::string_view left) {
  Input input;
  input.batch = number_of(line_of(left)).value_or(3);
  input.least = number_of(line_of(left));
  input.most = number_of(line_of(left));
  for (std::string& expression : input.expressions) expression = line_of(left);
  return input;
}

model::Pt2Model open_of(const Input& input) {
  static const model::Pt2Model kOpen = [] {
    model::Pt2Model made = model::open_model();
    model::add_assertion(made);
    return made;
  }();
  model::Pt2Model open = kOpen;
  const auto expression = [&](Place place) { return model::symbolic(input.expressions[place]); };
  Json& graph = open.program["graph_module"]["graph"];
  graph["sym_int_values"]["floordiv"] = expression(kViewRows);
  graph["sym_float_values"]["truediv"] = expression(kFactor);
  graph["sym_bool_values"]["le"] = expression(kAsserted);
  Json& view = open.value("view");
  view["sizes"][0] = expression(kSize);
  view["strides"][0] = expression(kStride);
  view["storage_offset"] = expression(kOffset);
  const auto bound = [](std::optional<int64_t> number) { return number ? Json(*number) : Json(); };
  open.program["range_constraints"]["s77"] = {{"min_val", bound(input.least)},
                                              {"max_val", bound(input.most)}};
  return open;
}

Json literal(const SymbolicNumber& number) {
  if (const auto* whole = std::get_if<int64_t>(&number)) return model::literal("as_int", *whole);
  if (const auto* real = std::get_if<double>(&number)) return model::literal("as_float", *real);
  return model::literal("as_bool", std::get<bool>(number));
}

// What an export with that batch would have been; nothing: an expression has no number, or what the
// model asserts does not hold.
std::optional<model::Pt2Model> fixed_of(const Input& input) {
  std::array<std::optional<SymbolicNumber>, kPlaces> numbers;
  for (size_t place = 0; place < kPlaces; ++place) {
    const std::string text = model::with_symbol(input.expressions[place]);
    numbers[place] = opdag::evaluate(text, "s77", input.batch);
    const auto whole = opdag::evaluate_integer(text, "s77", input.batch);
    if (place != kFactor && place != kAsserted) numbers[place] = whole;
    if (!numbers[place] && place != kAsserted) return {};
  }
  if (numbers[kAsserted] == SymbolicNumber(false)) return {};
  model::Pt2Model fixed = model::fixed_model(input.batch);
  fixed.nodes()[6]["inputs"][1]["arg"]["as_sym_ints"][0] = literal(*numbers[kViewRows]);
  fixed.nodes()[7]["inputs"][1]["arg"] = literal(*numbers[kFactor]);
  Json& view = fixed.value("view");
  view["sizes"][0] = literal(*numbers[kSize]);
  view["strides"][0] = literal(*numbers[kStride]);
  view["storage_offset"] = literal(*numbers[kOffset]);
  return fixed;
}

Result<opdag::Graph> import(const model::Pt2Model& model, const opdag::ImportOptions& options) {
  static const std::string kWeights = Json{{"config", model.weights}}.dump();
  const MemoryFile file(zipped(model.program.dump(), kWeights));
  WEFT_TRY(const auto archive, opdag::Archive::open(file.path()));
  return opdag::import_graph(archive, options);
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string tail = "\nLessThan($, Integer(50))\n$\nInteger(3)\nInteger(0)";
  return {
      "3\n2\n64\nMul(Rational(1, 2), Mul(Integer(2), $))\nIntTrueDiv($, Integer(8))" + tail,
      "50\n\n\nFloorDiv(Mul(Integer(2), $), Integer(2))\nFloat('0.5', precision=53)" + tail,
      "51\n\n\nMax($, Integer(1))\nToFloat($)" + tail,
      "1\n2\n3\n$\nPow($, Integer(2))" + tail,
      "6\n\n\nWhere(StrictGreaterThan($, Integer(5)), $, Integer(2))\nOpaqueUnaryFn_sqrt($)"
      "\nAnd(Equality($, Integer(6)), Not(Unequality($, $)), Or(true, false))"
      "\nCeilToInt(FloatTrueDiv($, Integer(1)))\nAdd(Mod($, Integer(4)), CleanDiv($, Integer(6)))"
      "\nModularIndexing($, Integer(2), Integer(3))",
      "9\n-1\n9223372036854775807\nMin(PythonMod($, Integer(10)), CeilDiv(Integer(17), Integer(2)))"
      "\nFloorToInt(Rational(7, 2))\nGreaterThan(Identity($), TruncToInt(Float('1e3')))"
      "\nPowByNatural($, Integer(1))\nStrictLessThan($, $)\nSymbol('s5', integer=True)",
  };
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const fuzz::Input input = fuzz::read(fuzz::text_of(data, size));
  opdag::ImportOptions options;
  options.micro_batch = input.batch;
  const auto closed = fuzz::import(fuzz::open_of(input), options);
  const bool allowed = input.batch >= std::max<int64_t>(1, input.least.value_or(1)) &&
                       input.batch <= input.most.value_or(INT64_MAX);
  const auto fixed = allowed ? fuzz::fixed_of(input) : std::nullopt;
  if (!fixed) {
    WEFT_CHECK(!closed.ok());
    return 0;
  }
  const auto expected = fuzz::import(*fixed, {});
  WEFT_CHECK(closed.ok() == expected.ok());
  if (!closed.ok()) return 0;
  WEFT_CHECK(opdag::to_text(*closed) == opdag::to_text(*expected));
  fuzz::use(*closed);
  return 0;
}
