// Shell scripts in the place of weft-worker, and the lines they say.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/os/file.h"
#include "job/worker_spec.h"

namespace weft::daemon::testing {

// A folder of this name, empty.
inline os::Path fresh_dir(const std::string& name) {
  const os::Path dir = os::Path(::testing::TempDir()) / name;
  EXPECT_TRUE(os::remove_all(dir).ok());
  EXPECT_TRUE(os::make_directories(dir).ok());
  return dir;
}

// A program that runs body; $3 is the spec's path (run --spec FILE).
inline os::Path script(const os::Path& dir, const std::string& body) {
  EXPECT_TRUE(os::write_file_atomic(dir / "worker.sh", "#!/bin/sh\n" + body + "\n", 0755).ok());
  return dir / "worker.sh";
}

// A shell command that says an event.
inline std::string say(const job::WorkerEvent& event) {
  return "echo '" + job::event_to_json(event).dump() + "'; ";
}
inline std::string say(job::WorkerEventKind kind) {
  job::WorkerEvent event;
  event.kind = kind;
  event.port = 4711;
  return say(event);
}

inline job::WorkerSpec worker_spec(const std::string& job, uint32_t epoch, int32_t stage) {
  job::WorkerSpec spec;
  spec.job = job;
  spec.stage = stage;
  spec.spec = *job::parse_job_toml(
      "name='j'\nmodel='m'\n[data]\ntrain='t'\n[data.bind]\nx='tokens'\n"
      "[train]\nsteps=3\nbatch=2\nlr=0.1\n",
      "", {});
  spec.plan.epoch = epoch;
  spec.plan.partition = {stage + 1, {}};
  for (int32_t s = 0; s <= stage; ++s) {
    spec.plan.partition.stage_of.push_back(s);
    spec.plan.stages.push_back({{"peer"}, 1, 1, 1});
  }
  spec.token_dtype = "uint16";
  return spec;
}

}  // namespace weft::daemon::testing
