#include "executor/worker.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/os/own_process.h"
#include "executor/convert.h"
#include "executor/device_memory.h"
#include "executor/worker_goodbye.h"
#include "executor/worker_loop.h"
#include "executor/worker_stage.h"
#include "net/tls/tls_endpoint.h"

// After the others: thread settings of libtorch.
#include <ATen/Parallel.h>

namespace weft::executor {

Status configure_torch(int32_t threads) {
  os::keep_freed_memory();
  try {
    at::set_num_threads(std::clamp(threads, 1, 1024));
    at::set_num_interop_threads(1);
    use_expandable_segments();
    return {};
  } catch (const std::exception& error) {
    return make_error(Code::kInternal,
                      fmt::format("setting up libtorch's threads: {}", exception_text(error)));
  }
}

namespace {

constexpr int32_t kConnectTimeoutMs = 60000;

net::TlsEndpointOptions endpoint_options(const job::WorkerSpec& spec, const WorkerLinks& links) {
  net::TlsEndpointOptions options;
  options.job = spec.job;
  options.epoch = spec.plan.epoch;
  options.stage = spec.stage;
  options.peer = peer_of(spec.plan, spec.stage, spec.replica);
  options.listen_host = spec.listen_host.empty() ? "127.0.0.1" : spec.listen_host;
  options.listen_port = spec.listen_port;
  options.certificate_path = spec.certificate_path;
  options.key_path = spec.key_path;
  options.ca_path = spec.ca_path;
  options.edges = links.edges;
  options.control_neighbours = links.control_neighbours;
  options.link_timeout_ms = spec.link_timeout_ms;
  return options;
}

// The next line must be of that kind: anything else means daemon and worker disagree.
Result<DaemonLine> expect_line(WorkerControl& control, DaemonLine::Kind kind, const char* name) {
  WEFT_TRY(DaemonLine line, control.next_line());
  if (line.kind != kind) {
    return make_error(Code::kInvalid, fmt::format("expected the daemon's line \"{}\"", name));
  }
  return line;
}

// Forgets the endpoint before it goes away: weft-stdin may interrupt it at any time.
struct EndpointScope {
  WorkerControl& control;
  EndpointScope(WorkerControl& c, net::Endpoint* endpoint) : control(c) {
    control.set_endpoint(endpoint);
  }
  ~EndpointScope() { control.set_endpoint(nullptr); }
};

class Assignment {
 public:
  Assignment(const job::WorkerSpec& spec, Compute compute, WorkerControl& control,
             const EventSink& events)
      : spec_(spec), compute_(compute), control_(control), events_(events) {}

  int64_t steps_done() const { return steps_done_; }

  Status run() {
    WEFT_TRY_STATUS(configure_torch(spec_.threads));
    WEFT_TRY(StageFiles files, load_stage_files(spec_));
    WEFT_TRY(const auto endpoint, net::TlsEndpoint::listen(endpoint_options(spec_, files.links)));
    const EndpointScope scope(control_, endpoint.get());
    report(job::WorkerEventKind::kListening, endpoint->port());
    Status status = run_linked(std::move(files), *endpoint);
    // The goodbye names the cause, so that neighbours fail at once and with it.
    if (!status) endpoint->set_leave_reason(status.error().message);
    return status;
  }

 private:
  // As run, with the endpoint listening; exceptions become errors while it is still there.
  Status run_linked(StageFiles files, net::TlsEndpoint& endpoint) {
    try {
      return run_with(std::move(files), endpoint);
    } catch (const std::exception& error) {
      return make_error(Code::kInternal, exception_text(error));
    }
  }

  Status run_with(StageFiles files, net::TlsEndpoint& endpoint) {
    const WorkerLinks links = files.links;
    const BatchShape batch = files.batch;
    WEFT_TRY(const DaemonLine connect,
             expect_line(control_, DaemonLine::Kind::kConnect, "connect"));
    WEFT_TRY(const auto neighbours, neighbours_of(links, spec_.plan, connect.stages));
    if (!neighbours.empty()) {
      WEFT_TRY_STATUS(
          endpoint.connect(neighbours, std::max(kConnectTimeoutMs, spec_.link_timeout_ms)));
    }
    control_.moved();
    WEFT_TRY(LoadedStage stage,
             load_stage(std::move(files), spec_, compute_, endpoint, [this] { control_.moved(); }));
    report(job::WorkerEventKind::kReady, endpoint.port());
    WEFT_TRY_STATUS(expect_line(control_, DaemonLine::Kind::kStart, "start"));
    return train(stage, batch, links.loss_stage, endpoint);
  }

  void report(job::WorkerEventKind kind, uint16_t port) {
    job::WorkerEvent event;
    event.kind = kind;
    event.step = spec_.resume.step;
    event.port = port;
    event.peak_memory_bytes = os::peak_resident_bytes();
    events_(event);
  }

  Status train(LoadedStage& stage, const BatchShape& batch, int32_t loss_stage,
               net::Endpoint& endpoint) {
    LoopOptions options;
    options.spec = spec_;
    options.batch = batch;
    options.eval_micro_batches = stage.eval_micro_batches;
    options.loss_stage = spec_.stage == loss_stage;
    TrainingLoop loop(std::move(options), *stage.runtime, endpoint, control_, events_);
    auto trained = loop.run();
    steps_done_ = loop.steps_done();
    if (!trained) return trained;
    const auto parted = say_goodbye(endpoint, control_, spec_.plan.epoch, spec_.stage,
                                    spec_.plan.partition.stages, loss_stage);
    // All work of this stage is done and stored: who failed later reports it himself.
    if (!parted) log_info("links ended without goodbye: {}", parted.error().text());
    return {};
  }

  const job::WorkerSpec& spec_;
  Compute compute_;
  WorkerControl& control_;
  const EventSink& events_;
  int64_t steps_done_ = 0;
};

}  // namespace

int run_worker(const job::WorkerSpec& spec, Compute compute, WorkerControl& control,
               const EventSink& events) {
  log_info("job {} stage {}/{} on {}, {} threads", spec.job, spec.stage, spec.plan.partition.stages,
           spec.device, spec.threads);
  Assignment assignment(spec, compute, control, events);
  Status status;
  try {
    status = assignment.run();
  } catch (const std::exception& error) {
    status = make_error(Code::kInternal, exception_text(error));
  }
  if (status) return kExitFinished;
  const StopCause cause = control.stop_cause();
  if (cause == StopCause::kOrdered) return kExitFinished;
  if (cause == StopCause::kDaemonGone) return kExitFailed;
  Error error = std::move(status).error().within(fmt::format("stage {}", spec.stage));
  log_error("{}", error.text());
  events(failure_event(error, assignment.steps_done()));
  return kExitFailed;
}

}  // namespace weft::executor
