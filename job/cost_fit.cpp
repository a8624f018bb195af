#include "job/cost_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "base/statistics.h"

namespace weft::job {
namespace {

constexpr size_t kTerms = 3;
constexpr int kRounds = 20;
constexpr double kHuber = 1.5;  // of the residuals' scale; 95 % efficient on normal noise
constexpr double kLeastScale = 1e-6;

using Terms = std::array<double, kTerms>;

// One sample divided by its seconds: terms . x = 1, all terms near one another by column scales.
// x is least + extra, with no extra below zero.
struct Row {
  Terms terms;
  double weight = 1;
  double left = 1;  // 1 - terms . least
};

double dot(const Terms& a, const Terms& b) {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

// The normal equations of the columns in `active`, by elimination; nullopt: singular.
std::optional<Terms> solve(const std::vector<Row>& rows, unsigned active) {
  std::array<Terms, kTerms> matrix{};
  Terms right{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < kTerms; ++i) {
      right[i] += row.weight * row.left * row.terms[i];
      for (size_t j = 0; j < kTerms; ++j) matrix[i][j] += row.weight * row.terms[i] * row.terms[j];
    }
  }
  for (size_t i = 0; i < kTerms; ++i) {
    if (active >> i & 1) continue;
    matrix[i].fill(0);
    for (Terms& line : matrix) line[i] = 0;
    matrix[i][i] = 1;
    right[i] = 0;
  }
  for (size_t column = 0; column < kTerms; ++column) {
    size_t best = column;
    for (size_t i = column + 1; i < kTerms; ++i) {
      if (std::abs(matrix[i][column]) > std::abs(matrix[best][column])) best = i;
    }
    if (std::abs(matrix[best][column]) < 1e-12) return std::nullopt;
    std::swap(matrix[best], matrix[column]);
    std::swap(right[best], right[column]);
    for (size_t i = 0; i < kTerms; ++i) {
      if (i == column) continue;
      const double factor = matrix[i][column] / matrix[column][column];
      for (size_t j = column; j < kTerms; ++j) matrix[i][j] -= factor * matrix[column][j];
      right[i] -= factor * right[column];
    }
  }
  Terms x;
  for (size_t i = 0; i < kTerms; ++i) x[i] = right[i] / matrix[i][i];
  return x;
}

double loss_of(const std::vector<Row>& rows, const Terms& extra) {
  double loss = 0;
  for (const Row& row : rows) loss += row.weight * std::pow(dot(row.terms, extra) - row.left, 2);
  return loss;
}

// Non-negative least squares: with three columns every set of active ones is tried.
Terms solve_non_negative(const std::vector<Row>& rows) {
  Terms best{};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned active = 0; active < 1u << kTerms; ++active) {
    const auto x = solve(rows, active);
    if (!x || std::any_of(x->begin(), x->end(), [](double v) { return !(v >= 0); })) continue;
    const double loss = loss_of(rows, *x);
    if (loss < least) {
      least = loss;
      best = *x;
    }
  }
  return best;
}

std::vector<double> errors_of(const std::vector<Row>& rows, const Terms& extra) {
  std::vector<double> errors;
  for (const Row& row : rows) errors.push_back(std::abs(dot(row.terms, extra) - row.left));
  return errors;
}

bool usable(const CostSample& sample) {
  const auto fine = [](double value) { return std::isfinite(value) && value >= 0; };
  return fine(sample.operators) && fine(sample.flops) && fine(sample.bytes) &&
         std::isfinite(sample.seconds) && sample.seconds > 0;
}

}  // namespace

CostFit fit_costs(const std::vector<CostSample>& samples, double least_flop_s) {
  std::vector<Row> rows;
  for (const CostSample& s : samples) {
    if (!usable(s)) continue;
    rows.push_back({{s.operators / s.seconds, s.flops / s.seconds, s.bytes / s.seconds}});
  }
  if (rows.empty()) return {};
  Terms scale{};
  for (size_t i = 0; i < kTerms; ++i) {
    for (const Row& row : rows) scale[i] = std::max(scale[i], row.terms[i]);
    for (Row& row : rows) row.terms[i] = scale[i] > 0 ? row.terms[i] / scale[i] : 0;
  }
  const Terms least{0, least_flop_s * scale[1], 0};
  for (Row& row : rows) row.left = 1 - dot(row.terms, least);
  Terms x = solve_non_negative(rows);
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<double> errors = errors_of(rows, x);
    const double width = kHuber * std::max(1.4826 * median(errors), kLeastScale);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].weight = errors[i] <= width ? 1 : width / errors[i];
    }
    x = solve_non_negative(rows);
  }
  CostFit fit;
  fit.error = median(errors_of(rows, x));
  const auto coefficient = [&](size_t i) {
    return scale[i] > 0 ? (least[i] + x[i]) / scale[i] : 0;
  };
  fit.cost = {coefficient(0), coefficient(1), coefficient(2)};
  return fit;
}

}  // namespace weft::job
