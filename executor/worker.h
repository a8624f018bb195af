// One assignment from start to end: listen, connect, load, train, say goodbye. The whole life of
// weft-worker's compute thread; see job/worker_spec.h for what it says and hears.
#pragma once

#include "executor/stage_runtime.h"
#include "executor/threads.h"
#include "executor/worker_lines.h"
#include "job/worker_spec.h"

namespace weft::executor {

// Exit codes of weft-worker.
inline constexpr int kExitFinished = 0;  // or stopped by its daemon
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// libtorch as every worker uses it: that many threads, freed memory kept. Once, before the first
// tensor.
Status configure_torch(int32_t threads);

// Blocks until the job ends; a failure has been reported as an event when this returns.
int run_worker(const job::WorkerSpec& spec, Compute compute, WorkerControl& control,
               const EventSink& events);

}  // namespace weft::executor
