#include "executor/worker_lines.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/os/line_pipe.h"

namespace weft::executor {
namespace {

constexpr size_t kMaxStages = 4096;

job::StageAddress address_of(const nlohmann::json& json) {
  job::StageAddress address;
  address.stage = json.at("stage").get<int32_t>();
  address.peer = json.at("peer").get<std::string>();
  address.host = json.at("host").get<std::string>();
  const auto port = json.at("port").get<int64_t>();
  if (port < 0 || port > 65535) throw std::out_of_range(fmt::format("port {}", port));
  address.port = static_cast<uint16_t>(port);
  return address;
}

}  // namespace

Result<DaemonLine> parse_daemon_line(const std::string& line) {
  try {
    const nlohmann::json json = nlohmann::json::parse(line);
    const auto type = json.at("type").get<std::string>();
    DaemonLine result;
    if (type == "start") {
      result.kind = DaemonLine::Kind::kStart;
    } else if (type == "hold") {
      result.kind = DaemonLine::Kind::kHold;
      result.step = json.at("step").get<int64_t>();
    } else if (type == "stop") {
      result.kind = DaemonLine::Kind::kStop;
      result.reason = json.value("reason", "");
    } else if (type == "connect") {
      result.kind = DaemonLine::Kind::kConnect;
      const nlohmann::json& stages = json.at("stages");
      if (!stages.is_array() || stages.size() > kMaxStages) {
        return make_error(Code::kInvalid, "a connect line without a list of stages");
      }
      for (const nlohmann::json& stage : stages) result.stages.push_back(address_of(stage));
    } else {
      return make_error(Code::kInvalid, fmt::format("unknown line type \"{}\"", type),
                        "connect, start, hold and stop are known");
    }
    return result;
  } catch (const std::exception& error) {
    return make_error(Code::kInvalid, fmt::format("bad line on standard input: {}", error.what()));
  }
}

void EventWriter::write(const job::WorkerEvent& event) {
  const std::string line =
      job::event_to_json(event).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
      "\n";
  const std::lock_guard lock(mutex_);
  // A reader that is gone also closed our standard input, and that ends the worker.
  os::write_fully(fd_, line);
}

job::WorkerEvent failure_event(const Error& error, int64_t step) {
  job::WorkerEvent event;
  event.kind = job::WorkerEventKind::kFailed;
  event.step = step;
  event.error_code = code_name(error.code);
  event.message = error.message;
  if (!error.node.empty()) event.message += fmt::format(" (node {})", error.node);
  if (!error.op.empty()) event.message += fmt::format(" (operator {})", error.op);
  event.next = error.next;
  return event;
}

}  // namespace weft::executor
