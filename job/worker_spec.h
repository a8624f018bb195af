// What a daemon and its worker say to each other: the assignment in one JSON document, then one
// JSON object a line in both directions over the worker's standard input and output.
// (No protobuf here: the worker links libtorch, whose wheel carries another protobuf.)
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "job/plan.h"
#include "job/spec.h"

namespace weft::job {

// A content-addressed file of a job, and where it lies on this machine once fetched.
struct BlobRef {
  std::string sha256;
  uint64_t bytes = 0;
  std::string path;  // filled by the daemon
};

// A stage's data-plane endpoint as others dial it.
struct StageAddress {
  int32_t stage = 0;
  std::string peer;   // peer id that must stand in the certificate
  std::string host;   // advertised, not the bound one
  uint16_t port = 0;  // 0: cannot be dialled, it dials us
};

struct ResumePoint {
  int64_t step = 0;  // steps already done; 0: fresh
  std::vector<BlobRef>
      shards;  // safetensors of every stage of the old plan: parameters, buffers, optimizer
};

struct WorkerSpec {
  std::string job;
  int32_t stage = 0;
  int32_t replica = 0;
  JobSpec spec;  // paths inside are informative; files come from the fields below
  Plan plan;
  BlobRef graph;       // text form of the training graph (loss appended, pruned, frozen)
  BlobRef eval_graph;  // text form
  std::map<std::string, BlobRef> weights;  // WeightRef::path -> blob; only what this stage needs
  BlobRef init;                            // safetensors, optional (empty sha256)
  std::map<std::string, BlobRef>
      data;                 // "train", "eval", "train/images", ... only if this stage feeds inputs
  std::string token_dtype;  // "uint16" or "uint32", for token files
  ResumePoint resume;
  // Filled by the daemon:
  std::string work_dir;                             // scratch and checkpoint shards
  std::string device;                               // "cpu" or "cuda:0"
  int32_t threads = 1;                              // cores / workers on the host
  std::string listen_host;                          // data plane
  uint16_t listen_port = 0;                         // 0: any
  std::string certificate_path, key_path, ca_path;  // of this assignment only
  int32_t link_timeout_ms = 15000;                  // a data link silent or down that long is dead
};

nlohmann::json worker_spec_to_json(const WorkerSpec& spec);
Result<WorkerSpec> worker_spec_from_json(const nlohmann::json& json);

// ---- lines from the daemon -------------------------------------------------------------------
// {"type":"connect","stages":[StageAddress...]}   addresses are known: dial
// {"type":"start"}                                begin training
// {"type":"hold","step":N}                        write a shard behind step N and wait there; 0, or
//                                                 another step: go on
// {"type":"stop","reason":"..."}                  finish nothing more, exit 0
//
// ---- lines from the worker -------------------------------------------------------------------
enum class WorkerEventKind {
  kListening,   // port
  kReady,       // links up, weights loaded
  kAlive,       // once a second, from the I/O thread: seconds since the compute thread last moved
  kStep,        // step done: loss (loss stage), tokens, compute, bytes per edge, rates of links
  kEval,        // evaluation done (loss stage): step, loss
  kCheckpoint,  // a shard is written: step, path
  kFinished,    // all steps done, final shard reported
  kFailed,      // error
};

// What the messages to a neighbour stage say of the way there (net/endpoint.h, CarriedTraffic).
struct LinkTraffic {
  int32_t stage = 0;
  double bytes_s = 0, round_trip_s = 0;  // at least; the shortest; 0: unknown
  bool operator==(const LinkTraffic&) const = default;
};

struct WorkerEvent {
  WorkerEventKind kind = WorkerEventKind::kAlive;
  int64_t step = 0;  // steps done
  uint16_t port = 0;
  double loss = 0;       // mean over micro-batches; NaN where this stage does not know it
  double accuracy = -1;  // of an evaluation with integer labels; -1: none
  double grad_norm = -1;
  double loss_scale = -1;     // of the step, fp16 only
  int64_t skipped_steps = 0;  // by loss scaling, so far
  double seconds = 0;         // wall time of the step
  // In which the device computed: in this step or, on a card, in the last one it was done with; 0:
  // not known.
  double compute_s = 0;
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t peak_memory_bytes = 0;
  std::map<int32_t, int64_t> edge_bytes;  // edge id -> bytes sent this step
  std::vector<LinkTraffic> traffic;       // with a step, now and then: what is new
  std::string path;                       // of a checkpoint shard
  std::string error_code, message, next;  // of a failure
};

nlohmann::json event_to_json(const WorkerEvent& event);
Result<WorkerEvent> event_from_json(const nlohmann::json& json);

}  // namespace weft::job
