// weft job watch | wait JOB
#include "cli/watch/watch_job.h"

#include <fmt/format.h>
#include <chrono>

namespace weft::cli {
namespace {

using nlohmann::json;

// Quiet until the job ends: the event list's long poll is the clock.
Status wait_for(const std::string& id, int64_t timeout_s, Globals& globals) {
  WEFT_TRY(ApiClient client, ApiClient::open(globals));
  const std::string path = "/api/v1/jobs/" + path_segment(id);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(timeout_s);
  int64_t next = 0;
  for (;;) {
    WEFT_TRY(json job, client.get(path));
    if (job_ended(job)) {
      if (globals.json()) print_json(job);
      const std::string state = job.value("state", "");
      if (!globals.json()) fmt::print("job {} {}\n", job.value("id", ""), state);
      if (state == "finished") return {};
      return make_error(Code::kUnavailable,
                        fmt::format("job {}: {}", state, job.value("reason", "")),
                        job.value("next", ""));
    }
    if (timeout_s > 0 && std::chrono::steady_clock::now() > deadline) {
      return make_error(Code::kTimeout, fmt::format("job {} is still {} after {} s", id,
                                                    job.value("state", ""), timeout_s));
    }
    WEFT_TRY(json answer, client.get(fmt::format("{}/events?after={}&wait_ms=1000", path, next)));
    next = answer.value("next", next);
  }
}

}  // namespace

void add_job_watch(CLI::App& job, Globals& globals) {
  auto id = std::make_shared<std::string>();
  auto* watch = job.add_subcommand("watch", "follow a job until it ends");
  watch->add_option("job", *id, "id or name")->required();
  watch->callback([id, &globals] {
    run_verb(globals, [&]() -> Status {
      WEFT_TRY(ApiClient client, ApiClient::open(globals));
      return watch_job(client, *id, globals);
    });
  });
  auto timeout_s = std::make_shared<int64_t>(0);
  auto* wait = job.add_subcommand("wait", "return when a job has ended; exit 0 if it finished");
  wait->add_option("job", *id, "id or name")->required();
  wait->add_option("--timeout", *timeout_s, "seconds; 0: as long as it takes");
  wait->callback([id, timeout_s, &globals] {
    run_verb(globals, [&] { return wait_for(*id, *timeout_s, globals); });
  });
}

}  // namespace weft::cli
