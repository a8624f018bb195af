// The reader of the text form; the grammar stands in README.md. One pass, no recursion.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include "opdag/text.h"

namespace weft::opdag {
namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 20;

// Words of one line. The first thing that does not fit sets failed; what follows reads nothing.
class Line {
 public:
  explicit Line(std::string_view text) : text_(text) {}

  bool failed() const { return failed_; }
  std::string_view rest() const { return text_.substr(std::min(at_, text_.size())); }

  void spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool at_end() {
    spaces();
    return failed_ || at_ >= text_.size() || text_[at_] == '#';
  }
  bool take(std::string_view word) {
    spaces();
    if (failed_ || !text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void expect(std::string_view word) {
    if (!take(word)) failed_ = true;
  }

  std::string_view word() {  // letters, digits, _ and -
    spaces();
    const size_t start = at_;
    while (at_ < text_.size() && (isalnum(static_cast<unsigned char>(text_[at_])) ||
                                  text_[at_] == '_' || text_[at_] == '-')) {
      ++at_;
    }
    if (at_ == start) failed_ = true;
    return failed_ ? std::string_view{} : text_.substr(start, at_ - start);
  }

  template <typename T>
  T integer() {
    spaces();
    T value{};
    if (failed_) return value;
    const auto [end, error] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc{}) {
      failed_ = true;
      return T{};
    }
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }

  // An integer, or a double when it is written like one.
  Argument number() {
    spaces();
    const size_t start = at_;
    while (at_ < text_.size() && (isalnum(static_cast<unsigned char>(text_[at_])) ||
                                  text_[at_] == '.' || text_[at_] == '-' || text_[at_] == '+')) {
      ++at_;
    }
    const std::string_view word = text_.substr(start, at_ - start);
    const char *first = word.data(), *last = word.data() + word.size();
    if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (word == "inf") return std::numeric_limits<double>::infinity();
    if (word == "-inf") return -std::numeric_limits<double>::infinity();
    if (word.find_first_of(".e") == word.npos) {
      int64_t value = 0;
      const auto [end, error] = std::from_chars(first, last, value);
      failed_ = failed_ || error != std::errc{} || end != last || word.empty();
      return value;
    }
    double value = 0;
    const auto [end, error] = std::from_chars(first, last, value);
    failed_ = failed_ || error != std::errc{} || end != last;
    return value;
  }
  double real() {
    const Argument value = number();
    if (const auto* d = std::get_if<double>(&value)) return *d;
    failed_ = true;
    return 0;
  }

  std::string text() {
    std::string out;
    expect("\"");
    while (!failed_) {
      if (at_ >= text_.size()) {
        failed_ = true;
      } else if (text_[at_] == '"') {
        ++at_;
        return out;
      } else if (text_[at_] == '\\') {
        escape(out);
      } else {
        out += text_[at_++];
      }
    }
    return {};
  }

  std::string name() {  // bare or quoted
    spaces();
    if (rest().starts_with('"')) return text();
    const size_t start = at_;
    while (at_ < text_.size() && (isalnum(static_cast<unsigned char>(text_[at_])) ||
                                  text_[at_] == '_' || text_[at_] == ':' || text_[at_] == '.')) {
      ++at_;
    }
    if (at_ == start) failed_ = true;
    return std::string(text_.substr(start, at_ - start));
  }

  bool boolean() {
    if (take("true")) return true;
    expect("false");
    return false;
  }
  ValueId id() {
    if (take("_")) return kNone;
    expect("%");
    const auto value = integer<int32_t>();
    if (value < 0) failed_ = true;
    return value;
  }
  DType dtype() {
    const auto found = dtype_from_name(word());
    if (!found) failed_ = true;
    return found.value_or(DType::kFloat32);
  }
  template <typename Item>
  void list(Item item) {  // after the opening bracket
    if (take("]")) return;
    do item();
    while (!failed_ && take(","));
    expect("]");
  }
  std::vector<int64_t> sizes() {
    std::vector<int64_t> out;
    expect("[");
    list([&] { out.push_back(integer<int64_t>()); });
    return out;
  }
  template <size_t N>
  size_t choice(const char* const (&names)[N]) {
    const std::string_view name = word();
    for (size_t i = 0; i < N; ++i) {
      if (name == names[i]) return i;
    }
    failed_ = true;
    return 0;
  }

 private:
  void escape(std::string& out) {
    const char kind = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (kind == '"' || kind == '\\') {
      out += kind;
      at_ += 2;
      return;
    }
    unsigned code = 0;
    if (kind != 'x' || at_ + 4 > text_.size()) {
      failed_ = true;
      return;
    }
    const char* first = text_.data() + at_ + 2;
    const auto [end, error] = std::from_chars(first, first + 2, code, 16);
    if (error != std::errc{} || end != first + 2) failed_ = true;
    out += static_cast<char>(code);
    at_ += 4;
  }

  std::string_view text_;
  size_t at_ = 0;
  bool failed_ = false;
};

constexpr const char* kValueKinds[] = {"tensor", "list", "int", "float", "bool"};
constexpr const char* kLeafKinds[] = {"parameter", "buffer", "constant", "input"};
constexpr const char* kModes[] = {"eval", "train"};

Argument read_argument(Line& line) {
  if (line.take("none")) return NoneArg{};
  if (line.take("true")) return true;
  if (line.take("false")) return false;
  if (line.take("tensors[")) {
    ValueListArg out;
    line.list([&] { out.ids.push_back(line.id()); });
    return out;
  }
  if (line.take("floats[")) {
    FloatListArg out;
    line.list([&] { out.items.push_back(line.real()); });
    return out;
  }
  if (line.take("bools[")) {
    BoolListArg out;
    line.list([&] { out.items.push_back(line.boolean()); });
    return out;
  }
  if (line.take("complex(")) {
    ComplexArg out{};
    out.real = line.real();
    line.expect(",");
    out.imag = line.real();
    line.expect(")");
    return out;
  }
  if (line.take("dtype:")) return DTypeArg{line.dtype()};
  if (line.take("device:")) return DeviceArg{line.text()};
  if (line.take("layout:")) return LayoutArg{line.text()};
  if (line.take("format:")) return MemoryFormatArg{line.text()};
  if (line.take("[")) {
    IntListArg out;
    line.list([&] {
      line.spaces();
      if (line.rest().starts_with('%')) {
        out.items.push_back({0, line.id()});
      } else {
        out.items.push_back({line.integer<int64_t>(), kNone});
      }
    });
    return out;
  }
  line.spaces();
  if (line.rest().starts_with('"')) return line.text();
  if (line.rest().starts_with('%')) return ValueArg{line.id()};
  return line.number();
}

void read_value(Line& line, Graph& graph) {
  Value value;
  value.id = line.id();
  value.name = line.text();
  value.kind = static_cast<ValueKind>(line.choice(kValueKinds));
  value.meta.dtype = line.dtype();
  value.meta.sizes = line.sizes();
  line.expect("strides=");
  value.meta.strides = line.sizes();
  line.expect("offset=");
  value.meta.storage_offset = line.integer<int64_t>();
  line.expect("device=");
  value.meta.device = line.text();
  if (line.take("elements=[")) line.list([&] { value.elements.push_back(line.id()); });
  graph.values.push_back(std::move(value));
}

void read_leaf(Line& line, Graph& graph) {
  Leaf leaf;
  leaf.kind = static_cast<LeafKind>(line.choice(kLeafKinds));
  leaf.value = line.id();
  leaf.target = line.text();
  line.expect("persistent=");
  leaf.persistent = line.boolean();
  line.expect("trainable=");
  leaf.trainable = line.boolean();
  if (line.take("tied=")) leaf.tied_group = line.integer<int32_t>();
  if (line.take("file=")) {
    leaf.weight.path = line.text();
    line.expect("bytes=");
    leaf.weight.bytes = line.integer<uint64_t>();
    leaf.weight.stored_dtype = line.dtype();
    leaf.weight.sizes = line.sizes();
    line.expect("strides=");
    leaf.weight.strides = line.sizes();
    line.expect("offset=");
    leaf.weight.storage_offset = line.integer<int64_t>();
  }
  graph.leaves.push_back(std::move(leaf));
}

void read_node(Line& line, Graph& graph) {
  Node node;
  node.id = line.integer<int32_t>();
  if (line.take("group=")) node.atomic_group = line.integer<int32_t>();
  if (!line.take("()")) {
    do node.outputs.push_back(line.id());
    while (!line.failed() && line.take(","));
  }
  line.expect("=");
  node.op = line.name();
  line.expect("(");
  if (!line.take(")")) {
    do {
      NamedArgument argument;
      argument.name = line.name();
      line.expect("=");
      argument.value = read_argument(line);
      node.arguments.push_back(std::move(argument));
    } while (!line.failed() && line.take(","));
    line.expect(")");
  }
  graph.nodes.push_back(std::move(node));
}

void read_line(Line& line, Graph& graph) {
  const std::string_view kind = line.word();
  if (kind == "value") {
    read_value(line, graph);
  } else if (kind == "node") {
    read_node(line, graph);
  } else if (kind == "leaf") {
    read_leaf(line, graph);
  } else if (kind == "output") {
    Output output;
    output.name = line.text();
    output.value = line.id();
    graph.outputs.push_back(std::move(output));
  } else if (kind == "update") {
    BufferUpdate update;
    update.target = line.text();
    update.value = line.id();
    graph.buffer_updates.push_back(std::move(update));
  } else if (kind == "loss") {
    graph.loss_output = line.integer<int32_t>();
  } else if (kind == "mode") {
    graph.train_mode = line.choice(kModes) == 1;
  } else if (kind == "warning") {
    graph.warnings.push_back(line.text());
  } else {
    line.expect("value, node, leaf, output, update, loss, mode or warning");
  }
}

}  // namespace

Result<Graph> parse_text(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return make_error(Code::kTooLarge, fmt::format("graph text has {} bytes, at most {} are read",
                                                   text.size(), kMaxTextBytes));
  }
  Graph graph;
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    Line line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (number == 1) {
      line.expect("weft-graph 1");
    } else if (line.at_end()) {
      continue;
    } else {
      read_line(line, graph);
    }
    if (line.failed() || !line.at_end()) {
      return make_error(
          Code::kInvalid,
          fmt::format("graph text, line {}: cannot read '{}'", number, line.rest().substr(0, 60)),
          "the grammar stands in opdag/README.md");
    }
  }
  if (number == 0) return make_error(Code::kInvalid, "graph text is empty");
  WEFT_TRY_STATUS(validate(graph));
  return graph;
}

}  // namespace weft::opdag
