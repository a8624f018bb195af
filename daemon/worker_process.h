// WorkerProcess: one running weft-worker. A thread ("weft-worker-out") reads its event lines; the
// worker sees end-of-file on its standard input when this daemon dies, and exits.
//
// Owned by the main thread. Callbacks run on the reader thread and must only post.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/os/process.h"
#include "base/result.h"
#include "job/worker_spec.h"

namespace weft::daemon {

class WorkerProcess {
 public:
  using OnEvent = std::function<void(job::WorkerEvent)>;
  using OnExit = std::function<void(os::ExitStatus)>;

  // An assignment.
  static Result<std::unique_ptr<WorkerProcess>> start(const std::string& program,
                                                      const os::Path& spec_file,
                                                      const os::Path& log_file, OnEvent on_event,
                                                      OnExit on_exit,
                                                      const std::string& jail = "auto");
  // Any command of the program; its lines as they are.
  using OnLine = std::function<void(std::string)>;
  static Result<std::unique_ptr<WorkerProcess>> start_command(std::vector<std::string> argv,
                                                              const os::Path& log_file,
                                                              OnLine on_line, OnExit on_exit);
  // Kills what still runs and reaps it.
  ~WorkerProcess();

  // One JSON line to the worker; an error means that it is gone or does not read.
  Status send_line(const std::string& line);
  void kill_now();
  pid_t pid() const;

 private:
  struct Impl;
  explicit WorkerProcess(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::daemon
