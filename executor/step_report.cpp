#include "executor/step_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "executor/message_tensor.h"

namespace weft::executor {
namespace {

constexpr size_t kReportHead = 2, kVerdictSize = 5;

Error corrupt(const net::MessageKey& key, const std::string& what) {
  return make_error(Code::kCorrupt, fmt::format("{}: {}", key.text(), what),
                    "all stages must run the same version of weft on the same plan");
}

Result<net::Message> encode_row(const net::MessageKey& key, const std::vector<double>& row) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(row.size())}, at::kDouble);
  std::copy(row.begin(), row.end(), tensor.mutable_data_ptr<double>());
  return encode_tensor(key, tensor, host_transfer());
}

Result<std::vector<double>> decode_row(const net::Message& message, size_t least, size_t most) {
  const auto& sizes = message.sizes;
  const bool sane = !message.none && sizes.size() == 1 && sizes[0] >= 0 &&
                    static_cast<size_t>(sizes[0]) >= least && static_cast<size_t>(sizes[0]) <= most;
  if (!sane) return corrupt(message.key, "not a row of the expected length");
  const ExpectedTensor expected{sizes, DType::kFloat64, false, sizes[0]};
  WEFT_TRY(const auto tensor, decode_tensor(message, expected, host_transfer()));
  const at::Tensor row = tensor->contiguous();
  const auto* data = row.const_data_ptr<double>();
  return std::vector<double>(data, data + sizes[0]);
}

Result<bool> flag(const net::MessageKey& key, double value, const char* name) {
  if (value == 0 || value == 1) return value == 1;
  return corrupt(key, fmt::format("{} is {}, neither 0 nor 1", name, value));
}

}  // namespace

Result<net::Message> encode_report(const net::MessageKey& key, const StageReport& report) {
  std::vector<double> row{report.scale, report.overflow ? 1.0 : 0.0};
  for (const auto& [id, square] : report.squares) row.insert(row.end(), {double(id), square});
  return encode_row(key, row);
}

Result<StageReport> decode_report(const net::Message& message, float scale, size_t leaves) {
  const net::MessageKey& key = message.key;
  WEFT_TRY(const auto row, decode_row(message, kReportHead, kReportHead + 2 * leaves));
  if (row.size() % 2 != 0) return corrupt(key, "a norm without its weight");
  StageReport report;
  if (row[0] != scale) {
    return corrupt(key, fmt::format("loss scale {}, here it is {}", row[0], scale));
  }
  report.scale = scale;
  WEFT_TRY(report.overflow, flag(key, row[1], "overflow"));
  if (report.overflow && scale == 0) return corrupt(key, "overflow without loss scaling");
  for (size_t i = kReportHead; i < row.size(); i += 2) {
    const double id = row[i], square = row[i + 1];
    // A double outside the range of int32_t has no conversion.
    const bool known = id >= 0 && id < static_cast<double>(leaves) && id == std::floor(id);
    if (!known) return corrupt(key, fmt::format("norm of an unknown weight {}", id));
    const auto weight = static_cast<int32_t>(id);
    if (!report.squares.empty() && weight <= report.squares.back().first) {
      return corrupt(key, fmt::format("the norm of weight {} is out of order", weight));
    }
    if (square < 0) return corrupt(key, fmt::format("squared norm {}", square));
    report.squares.emplace_back(weight, square);
  }
  return report;
}

Result<StepVerdict> judge(const std::vector<StageReport>& reports, bool clips,
                          const LossScaler* scaler) {
  StepVerdict verdict;
  bool overflow = false;
  std::vector<std::pair<int32_t, double>> all;
  for (const StageReport& report : reports) {
    overflow = overflow || report.overflow;
    all.insert(all.end(), report.squares.begin(), report.squares.end());
  }
  if (clips) {
    std::sort(all.begin(), all.end());  // one order of the sum under any cut
    double sum = 0;
    for (const auto& [id, square] : all) sum += square;
    verdict.norm = std::sqrt(sum);
  }
  if (scaler == nullptr) return verdict;
  verdict.apply = !overflow;
  WEFT_TRY(verdict.next, scaler->after(overflow));
  return verdict;
}

Result<net::Message> encode_verdict(const net::MessageKey& key, const StepVerdict& verdict) {
  return encode_row(key, {verdict.norm, verdict.apply ? 1.0 : 0.0, verdict.next.scale,
                          static_cast<double>(verdict.next.good_steps),
                          static_cast<double>(verdict.next.skipped_steps)});
}

Result<StepVerdict> decode_verdict(const net::Message& message, bool clips,
                                   const LossScaler* scaler) {
  const net::MessageKey& key = message.key;
  WEFT_TRY(const auto row, decode_row(message, kVerdictSize, kVerdictSize));
  StepVerdict verdict;
  verdict.norm = row[0];
  if (clips ? verdict.norm < 0 : verdict.norm != -1) {
    return corrupt(key, fmt::format("the gradient's norm is {}", verdict.norm));
  }
  WEFT_TRY(verdict.apply, flag(key, row[1], "apply"));
  if (scaler != nullptr) {
    WEFT_TRY(verdict.next, scaler->after(!verdict.apply));
  } else if (!verdict.apply) {
    return corrupt(key, "a step to skip without loss scaling");
  }
  const LossScale& next = verdict.next;
  if (row[2] != next.scale || row[3] != static_cast<double>(next.good_steps) ||
      row[4] != static_cast<double>(next.skipped_steps)) {
    return corrupt(
        key, fmt::format("the loss scale goes on with {}, {}, {}; here with {}, {}, {}", row[2],
                         row[3], row[4], next.scale, next.good_steps, next.skipped_steps));
  }
  return verdict;
}

}  // namespace weft::executor
