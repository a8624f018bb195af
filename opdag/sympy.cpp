#include "opdag/sympy.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

namespace weft::opdag {
namespace {

using Number = SymbolicNumber;
using Numbers = std::vector<Number>;
using Answer = std::optional<Number>;

constexpr int kMaxDepth = 64;
constexpr double kExact = 9007199254740992.0;  // 2^53: whole numbers below are exact doubles

double as_double(const Number& number) {
  return std::visit([](auto n) { return static_cast<double>(n); }, number);
}

// Fractions stand as doubles (Rational(1, 2) times a size): whole again, they are sizes.
std::optional<int64_t> as_integer(const Number& number) {
  if (const auto* n = std::get_if<int64_t>(&number)) return *n;
  const auto* real = std::get_if<double>(&number);
  if (real == nullptr || std::floor(*real) != *real || std::abs(*real) >= kExact) return {};
  return static_cast<int64_t>(*real);
}

bool all_integers(const Numbers& numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [](const Number& n) { return std::holds_alternative<int64_t>(n); });
}

bool all_booleans(const Numbers& numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [](const Number& n) { return std::holds_alternative<bool>(n); });
}

std::optional<int64_t> floor_divide(int64_t a, int64_t b) {
  if (b == 0 || (a == INT64_MIN && b == -1)) return {};
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

std::optional<int64_t> floor_modulo(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return b == 0 ? std::nullopt : std::optional<int64_t>(0);
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Answer folded(const Numbers& numbers, bool product) {
  if (!all_integers(numbers)) {
    double total = product ? 1 : 0;
    for (const Number& n : numbers) total = product ? total * as_double(n) : total + as_double(n);
    return total;
  }
  int64_t total = product ? 1 : 0;
  for (const Number& number : numbers) {
    const int64_t n = std::get<int64_t>(number);
    if (product ? __builtin_mul_overflow(total, n, &total)
                : __builtin_add_overflow(total, n, &total)) {
      return {};
    }
  }
  return total;
}

Answer power(const Number& base, const Number& exponent) {
  const auto* times = std::get_if<int64_t>(&exponent);
  if (times == nullptr || *times < 0 || !std::holds_alternative<int64_t>(base)) {
    return std::pow(as_double(base), as_double(exponent));
  }
  if (*times > 63) return {};
  return folded(Numbers(static_cast<size_t>(*times), base), true);
}

Answer rounded(double number) {
  if (!(std::abs(number) < kExact)) return {};
  return static_cast<int64_t>(number);
}

Answer compared(std::string_view name, const Number& a, const Number& b) {
  const double x = as_double(a), y = as_double(b);
  if (all_integers({a, b})) {
    const int64_t i = std::get<int64_t>(a), j = std::get<int64_t>(b);
    if (name == "Equality") return i == j;
    if (name == "Unequality") return i != j;
  }
  if (name == "Equality") return x == y;
  if (name == "Unequality") return x != y;
  if (name == "GreaterThan") return x >= y;
  if (name == "LessThan") return x <= y;
  if (name == "StrictGreaterThan") return x > y;
  if (name == "StrictLessThan") return x < y;
  return {};
}

// Of whole numbers alone, as torch.utils._sympy.functions defines them.
Answer of_integers(std::string_view name, const Numbers& numbers) {
  std::vector<int64_t> n;
  for (const Number& number : numbers) {
    const auto integer = as_integer(number);
    if (!integer) return {};
    n.push_back(*integer);
  }
  if (n.size() == 2 && (name == "FloorDiv" || name == "CleanDiv")) return floor_divide(n[0], n[1]);
  if (n.size() == 2 && name == "CeilDiv") {
    const auto whole = floor_divide(n[0], n[1]), rest = floor_modulo(n[0], n[1]);
    if (!whole || !rest) return {};
    return *whole + (*rest != 0 ? 1 : 0);
  }
  if (n.size() == 2 && (name == "Mod" || name == "PythonMod")) return floor_modulo(n[0], n[1]);
  if (n.size() == 3 && name == "ModularIndexing") {
    const auto whole = floor_divide(n[0], n[1]);
    return whole ? Answer(floor_modulo(*whole, n[2])) : std::nullopt;
  }
  return {};
}

Answer of_one(std::string_view name, const Number& number) {
  const double x = as_double(number);
  if (name == "Not") {
    const bool* b = std::get_if<bool>(&number);
    return b != nullptr ? Answer(!*b) : std::nullopt;
  }
  if (name == "Identity") return number;
  if (name == "ToFloat") return x;
  if (name == "TruncToInt") return rounded(std::trunc(x));
  if (name == "FloorToInt" || name == "floor") return rounded(std::floor(x));
  if (name == "CeilToInt" || name == "ceiling") return rounded(std::ceil(x));
  if (name == "OpaqueUnaryFn_sqrt") return std::sqrt(x);
  return {};
}

Answer call(std::string_view name, const Numbers& numbers) {
  if (numbers.empty()) return {};
  if (name == "And" || name == "Or") {
    if (!all_booleans(numbers)) return {};
    const auto on = [](const Number& n) { return std::get<bool>(n); };
    return name == "And" ? std::all_of(numbers.begin(), numbers.end(), on)
                         : std::any_of(numbers.begin(), numbers.end(), on);
  }
  if (numbers.size() == 3 && name == "Where" && std::holds_alternative<bool>(numbers[0])) {
    return std::get<bool>(numbers[0]) ? numbers[1] : numbers[2];
  }
  if (name == "Add" || name == "Mul") return folded(numbers, name == "Mul");
  if (name == "Max" || name == "Min") {
    const auto less = [](const Number& a, const Number& b) { return as_double(a) < as_double(b); };
    return name == "Max" ? *std::max_element(numbers.begin(), numbers.end(), less)
                         : *std::min_element(numbers.begin(), numbers.end(), less);
  }
  if (numbers.size() == 1) return of_one(name, numbers[0]);
  if (numbers.size() == 2) {
    if (name == "Pow" || name == "PowByNatural" || name == "FloatPow") {
      return power(numbers[0], numbers[1]);
    }
    if (name == "IntTrueDiv" || name == "FloatTrueDiv" || name == "Rational") {
      return as_double(numbers[0]) / as_double(numbers[1]);
    }
    if (const Answer answer = compared(name, numbers[0], numbers[1])) return answer;
  }
  return of_integers(name, numbers);
}

class Reader {
 public:
  Reader(std::string_view text, std::string_view symbol, int64_t value)
      : text_(text), symbol_(symbol), value_(value) {}

  Answer whole() {
    const Answer answer = expression(0);
    return at_ == text_.size() ? answer : std::nullopt;
  }

 private:
  bool take(char c) {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::string_view word() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    const size_t start = at_;
    const auto part_of_word = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '_' || c == '-' || c == '.' || c == '+';
    };
    while (at_ < text_.size() && part_of_word(text_[at_])) ++at_;
    return text_.substr(start, at_ - start);
  }

  std::optional<std::string_view> quoted() {
    if (!take('\'')) return {};
    const size_t start = at_, end = text_.find('\'', start);
    if (end == text_.npos) return {};
    at_ = end + 1;
    return text_.substr(start, end - start);
  }

  // ", positive=True, integer=True)": what is assumed of a symbol, the precision of a number.
  bool assumptions() {
    while (take(',')) {
      if (word().empty() || !take('=') || word().empty()) return false;
    }
    return take(')');
  }

  static Answer literal(std::string_view text) {
    int64_t integer = 0;
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, integer);
    if (code == std::errc() && stop == end) return integer;
    return {};
  }

  static Answer real(std::string_view text) {
    double number = 0;
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, number);
    if (code == std::errc() && stop == end) return number;
    return {};
  }

  Answer expression(int depth) {
    if (depth > kMaxDepth) return {};
    const std::string_view name = word();
    if (!take('(')) {
      if (name == "true" || name == "false") return name == "true";
      return literal(name);
    }
    if (name == "Symbol") {
      const auto symbol = quoted();
      if (!symbol || *symbol != symbol_ || !assumptions()) return {};
      return value_;
    }
    if (name == "Float") {
      const auto text = quoted();
      if (!text || !assumptions()) return {};
      return real(*text);
    }
    Numbers numbers;
    do {
      const Answer part = expression(depth + 1);
      if (!part) return {};
      numbers.push_back(*part);
    } while (take(','));
    if (!take(')')) return {};
    if (name == "Integer" && numbers.size() == 1) return numbers[0];
    return call(name, numbers);
  }

  std::string_view text_, symbol_;
  int64_t value_;
  size_t at_ = 0;
};

}  // namespace

std::optional<SymbolicNumber> evaluate(std::string_view expression, std::string_view symbol,
                                       int64_t value) {
  const Answer answer = Reader(expression, symbol, value).whole();
  if (answer && !std::isfinite(as_double(*answer))) return {};
  return answer;
}

std::optional<int64_t> evaluate_integer(std::string_view expression, std::string_view symbol,
                                        int64_t value) {
  const auto number = evaluate(expression, symbol, value);
  return number ? as_integer(*number) : std::nullopt;
}

}  // namespace weft::opdag
