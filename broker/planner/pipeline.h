// The evaluation model: what a step takes when given stages run on given peers over a given network
// under a given schedule. Pure; the judge of every plan, whoever made it.
//
// A message of b bytes from stage a to stage b passes the way between the two peers and every line
// they share with others (network.h), first come first served, each for b times its time per byte,
// cut through: it arrives when the slowest has let it pass, one latency later. Stages compute one
// thing at a time, in the order of the schedule that the workers run (job::make_schedule). A
// compressed message (compression.h) weighs its wire bytes; its sender encodes it right before it
// leaves, its receiver decodes it when it takes it, and either computes nothing else meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "broker/planner/compression.h"
#include "broker/planner/network.h"
#include "job/schedule.h"

namespace weft::broker {

struct PipelineStage {
  int32_t peer = 0;
  double forward_s = 0, backward_s = 0;  // of one micro-batch
  double fixed_bytes = 0;                // weights, gradients, optimizer, constants
  double stash_bytes = 0;                // of one micro-batch whose backward is still to come
  double input_bytes = 0;                // of one micro-batch, what the stage is given
  // Keeps the inputs only and runs the forward again, right before the backward.
  bool recompute = false;
  // Of that micro-batch's activations and gradients, encoding and decoding (set_codecs).
  double forward_codec_s = 0, backward_codec_s = 0;
  // What of their stash micro-batches that are recomputed use one after the other: passes there are
  // not captured, and free what the second part of a split backward does not read.
  double shared_bytes = 0;

  // Without a backward (all frozen) nothing runs again.
  double again_s() const { return recompute && backward_s > 0 ? forward_s : 0; }
  double codec_s() const { return forward_codec_s + backward_codec_s; }
  double work_s() const { return forward_s + backward_s + again_s() + codec_s(); }
};

// A weight that two stages share: after a step the gradient of one copy goes to the owner, the
// weight comes back.
struct PipelineTie {
  int32_t owner = 0, other = 0;  // stages
  double bytes = 0;
};

// How an edge's messages are sent.
struct EdgeCodecs {
  Coded forward, backward;
};

// graph.edges[e].bytes: as sent without a codec, one micro-batch, each way that is used.
struct Pipeline {
  std::vector<PipelineStage> stages;
  opdag::StageGraph graph;
  std::vector<EdgeCodecs> codecs;  // by edge; empty: all are sent as they are
  std::vector<PipelineTie> ties;
  // Before an update every stage tells the loss stage the norm of its gradients and waits for what
  // it says: clipping, loss scaling.
  bool agrees = false;
};

enum class BottleneckKind : uint8_t { kCompute, kLink, kLine, kLatency };

// The stages work what they say, too.
void set_codecs(Pipeline& pipeline, std::vector<EdgeCodecs> codecs);

// What a further micro-batch waits for once the pipeline is full.
struct Bottleneck {
  BottleneckKind kind = BottleneckKind::kCompute;
  double seconds = 0;  // of one micro-batch
  int32_t stage = 0;   // kCompute; kLink, kLatency: the sender
  int32_t other = 0;   // kLink, kLatency: the receiver
  int32_t line = -1;   // kLine
  bool operator==(const Bottleneck&) const = default;
};

struct StagePrediction {
  double compute_s = 0;  // forward (twice where it recomputes), backward and codecs, a micro-batch
  double codec_s = 0;    // of these, the codecs
  double send_s = 0;     // its messages of one micro-batch, on the slowest way of each
  double receive_s = 0;
  double memory_bytes = 0;
  int32_t in_flight = 1;  // micro-batches whose activations, or inputs, it keeps
  double busy = 0;        // share of the step it computes
};

// All messages of one micro-batch from one stage to another.
struct WayPrediction {
  int32_t from = 0, to = 0;  // stages
  double bytes = 0;          // of the tensors
  double seconds = 0;        // with every line for itself, without latency
  double busy = 0;           // share of the step they take
  double wire_bytes = 0;
  double encode_s = 0, decode_s = 0;
  std::vector<std::string> codecs{};  // distinct; of what is sent as it is: none
};

struct Prediction {
  double step_s = 0;
  double tie_s = 0;  // an exchange of shared weights by itself, mostly hidden by other work
  std::vector<StagePrediction> stages;
  std::vector<WayPrediction> ways;
  Bottleneck bottleneck;
};

// The longest exchange of a shared weight, gradient and weight, with every line for itself.
double tie_seconds(const Pipeline& pipeline, const Network& network);

// Seconds of a step of a run, played action by action, with what shared weights cost. Of very many
// micro-batches a part is played and its steady rate carried on; most_actions bounds the part.
double simulate_step(const Pipeline& pipeline, const Network& network,
                     const job::ScheduleOptions& schedule, size_t most_actions = 200000);

// What a further micro-batch waits for once the pipeline is full: compute, link, shared line or
// round trip, the slowest.
//
// Round trips (derived; methods, section 5 has its limit for long pipelines): a stage that begins
// its backwards after w forwards runs forward i + w behind backward i. So from a forward of stage s
// by way of stage t back to a later forward of stage s there is a loop of dependencies that goes on
// by w_s - w_t + 1 micro-batches and takes the compute of s to t and the transfers between them,
// both ways. For t the loss stage it is Little's law: w_s micro-batches are on their way.
Bottleneck bottleneck_of(const Pipeline& pipeline, const Network& network,
                         const job::ScheduleOptions& schedule);

Prediction predict(const Pipeline& pipeline, const Network& network,
                   const job::ScheduleOptions& schedule);

// Bytes a stage needs under the schedule; depth and deepest as job::in_flight_of has them. Where it
// recomputes: activations of the micro-batches recorded at once, inputs of the others.
double memory_of(const PipelineStage& stage, const job::ScheduleOptions& schedule, int32_t depth,
                 int32_t deepest);

// Of a backward in two parts (ZB-H1), the part that makes gradients of weights only: the two were
// measured .60 to .56 beside a forward of 1 (methods, section 7).
inline constexpr double kWeightShare = 0.5;
// Seconds from a micro-batch's forward on a stage to its gradient leaving: less than all its work
// where the backward is split.
double pass_seconds(const PipelineStage& stage, const job::ScheduleOptions& schedule);

// The gap the widest way between two stages asks for, at most the micro-batches there are, with
// the way that asks for it.
struct GapChoice {
  int32_t gap = 1;
  int32_t from = -1, to = -1;  // stages; -1: none asks for more than 1
  double latency_s = 0, transfer_s = 0, compute_s = 0;
};
GapChoice choose_gap(const Pipeline& pipeline, const Network& network, int32_t micro_batches);

}  // namespace weft::broker
