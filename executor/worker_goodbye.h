// The end of a job: no stage closes its links before every stage is done, or a stage that finished
// early would look like a dead neighbour to one that still evaluates.
#pragma once

#include "executor/threads.h"
#include "net/endpoint.h"

namespace weft::executor {

// Every stage tells the loss stage that it is done; the loss stage answers when all have. Blocks
// until then, at most as long as the endpoint lives.
Status say_goodbye(net::Endpoint& endpoint, WorkerControl& control, uint32_t epoch, int32_t stage,
                   int32_t stages, int32_t loss_stage, int32_t flush_ms);

}  // namespace weft::executor
