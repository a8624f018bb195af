// The end of a job: what was sent last must arrive, and no stage closes its links before every
// stage is done, or a stage that finished early would look like a dead neighbour to one that still
// evaluates. Nothing here has a bound in total time: a link that lives is waited for, a dead one is
// the endpoint's to notice (link_timeout_ms). Compute thread only.
#pragma once

#include "executor/threads.h"
#include "net/endpoint.h"

namespace weft::executor {

// Blocks until everything sent is acknowledged. An error: the endpoint failed, or kCancelled when
// the worker was stopped.
Status flush_patiently(net::Endpoint& endpoint, WorkerControl& control);

// Every stage tells the loss stage that it is done; the loss stage answers when all have. Blocks
// until then, at most as long as the endpoint lives.
Status say_goodbye(net::Endpoint& endpoint, WorkerControl& control, uint32_t epoch, int32_t stage,
                   int32_t stages, int32_t loss_stage);

}  // namespace weft::executor
