#include "cli/watch/watch_job.h"

#include <fmt/format.h>

#include <cstdio>
#include <deque>

#include "base/os/process.h"

namespace weft::cli {
namespace {

using nlohmann::json;

constexpr int kWaitMs = 2000;
constexpr size_t kRateWindow = 20;  // steps the speed is averaged over

double number(const json& object, const char* key, double otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : otherwise;
}

class Watch {
 public:
  Watch(ApiClient& client, std::string id, Globals& globals)
      : client_(client),
        path_("/api/v1/jobs/" + path_segment(id)),
        json_(globals.json()),
        terminal_(!json_ && os::stdout_is_terminal()) {}

  Status run() {
    for (;;) {
      // The state is read first: what it ended with has reached the lists read after it.
      WEFT_TRY(json job, client_.get(path_));
      steps_total_ = number(job, "steps", 0);
      WEFT_TRY_STATUS(show_events(job_ended(job) ? 0 : kWaitMs / 4));
      WEFT_TRY_STATUS(show_metrics(job_ended(job) ? 0 : kWaitMs));
      if (job_ended(job)) return conclude(job);
    }
  }

 private:
  Status show_events(int wait_ms) {
    WEFT_TRY(json answer, client_.get(fmt::format("{}/events?after={}&wait_ms={}", path_,
                                                  next_event_, events_seen_ ? 0 : wait_ms)));
    events_seen_ = true;
    for (const json& event : answer.at("events")) {
      if (json_) {
        std::printf("%s\n", json({{"event", event}}).dump().c_str());
      } else {
        clear_line();
        fmt::print("{}\n", event.value("message", ""));
      }
    }
    next_event_ = answer.value("next", next_event_);
    std::fflush(stdout);
    return {};
  }

  Status show_metrics(int wait_ms) {
    WEFT_TRY(json answer, client_.get(fmt::format("{}/metrics?after={}&wait_ms={}", path_,
                                                  next_step_, wait_ms)));
    for (const json& step : answer.at("steps")) show_step(step);
    for (const json& eval : answer.at("evals")) show_eval(eval);
    next_step_ = answer.value("next", next_step_);
    std::fflush(stdout);
    return {};
  }

  void show_step(const json& step) {
    recent_.push_back(
        {number(step, "seconds", 0), number(step, "tokens", 0), number(step, "samples", 0)});
    if (recent_.size() > kRateWindow) recent_.pop_front();
    if (json_) {
      std::printf("%s\n", json({{"step", step}}).dump().c_str());
      return;
    }
    const std::string line = step_line(step);
    if (terminal_) {
      fmt::print("\r\033[K{}", line);
    } else {
      fmt::print("{}\n", line);
    }
  }

  std::string step_line(const json& step) const {
    double seconds = 0, tokens = 0, samples = 0;
    for (const Sample& sample : recent_) {
      seconds += sample.seconds;
      tokens += sample.tokens;
      samples += sample.samples;
    }
    const double done = number(step, "step", 0);
    const double rate = seconds > 0 ? static_cast<double>(recent_.size()) / seconds : 0;
    std::string line =
        fmt::format("step {:.0f}/{:.0f}  loss {:.4f}", done, steps_total_, number(step, "loss", 0));
    if (seconds > 0) {
      line += tokens > 0 ? fmt::format("  {}tokens/s", human_count(tokens / seconds) + " ")
                         : fmt::format("  {}samples/s", human_count(samples / seconds) + " ");
    }
    if (rate > 0) line += "  ETA " + human_duration((steps_total_ - done) / rate);
    return line + busy_text(step) + edge_text(step);
  }

  static std::string busy_text(const json& step) {
    std::string text;
    for (const json& stage : step.value("stages", json::array())) {
      const double busy = number(stage, "busy", -1);  // none where it is not known yet
      text += text.empty() ? "" : " ";
      text += busy < 0 ? "-" : fmt::format("{:.0f}", 100 * busy);
    }
    return text.empty() ? text : "  busy% [" + text + "]";
  }

  static std::string edge_text(const json& step) {
    const json edges = step.value("edges", json::object());
    double total = 0;
    for (const auto& [edge, bytes] : edges.items()) total += bytes.get<double>();
    if (edges.empty()) return {};
    if (edges.size() > 4)
      return fmt::format("  {} edges {}/step", edges.size(), human_bytes(total));
    std::string text;
    for (const auto& [edge, bytes] : edges.items()) {
      text +=
          fmt::format("{}{}:{}", text.empty() ? "" : " ", edge, human_bytes(bytes.get<double>()));
    }
    return "  edges [" + text + "]";
  }

  void show_eval(const json& eval) {
    const auto step = static_cast<int64_t>(number(eval, "step", 0));
    if (step <= last_eval_) return;
    last_eval_ = step;
    if (json_) {
      std::printf("%s\n", json({{"eval", eval}}).dump().c_str());
      return;
    }
    clear_line();
    std::string line = fmt::format("eval at step {}: loss {:.6f}", step, number(eval, "loss", 0));
    const double accuracy = number(eval, "accuracy", -1);
    if (accuracy >= 0) line += fmt::format("  accuracy {:.4f}", accuracy);
    fmt::print("{}\n", line);
  }

  Status conclude(const json& job) {
    clear_line();
    const std::string state = job.value("state", "");
    if (json_) {
      std::printf("%s\n", json({{"job", job}}).dump().c_str());
    } else {
      fmt::print("job {} {} after step {:.0f}\n", job.value("id", ""), state,
                 number(job, "step", 0));
    }
    std::fflush(stdout);
    if (state == "finished") return {};
    return make_error(state == "cancelled" ? Code::kCancelled : Code::kUnavailable,
                      fmt::format("job {} {}: {}", job.value("id", ""), state,
                                  job.value("reason", "no reason given")),
                      job.value("next", ""));
  }

  void clear_line() {
    if (terminal_) fmt::print("\r\033[K");
  }

  struct Sample {
    double seconds, tokens, samples;
  };

  ApiClient& client_;
  std::string path_;
  bool json_, terminal_;
  bool events_seen_ = false;
  int64_t next_event_ = 0, next_step_ = 0, last_eval_ = -1;
  double steps_total_ = 0;
  std::deque<Sample> recent_;
};

}  // namespace

bool job_ended(const json& job) {
  const std::string state = job.value("state", "");
  return state == "finished" || state == "failed" || state == "cancelled";
}

Status watch_job(ApiClient& client, const std::string& id, Globals& globals) {
  return Watch(client, id, globals).run();
}

}  // namespace weft::cli
