// Prober: measures the ways between this machine and one or two peers that serve a ProbeDesk. For
// each: the shortest of some round trips on the open connection, then trains of bytes in one
// direction (train_series.h). With two peers: each alone, then both at once: where they share a
// line each gets less.
//
// run() blocks and belongs to one thread; the second of two trains at once has a thread of its own
// that ends with it ("weft-probe-2").
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "net/http/http.h"
#include "net/probe/arrivals.h"

namespace weft::net {

struct ProbeTarget {
  std::string peer;
  HttpClientOptions client;  // how to reach its desk
};

struct ProbeOrder {
  std::vector<ProbeTarget> targets;  // one or two
  bool receive = false;              // what the targets send; else what this machine sends
  uint64_t max_bytes = 0;            // of one train
  int64_t max_ms = 0;                // of everything behind the connections' opening
};

// Seconds that it takes of them: 8, or 40 round trips where that is more; of two targets far away
// twice that, since each is measured alone, too.
double time_to_measure_s(double most_s, double round_trip_s, size_t targets);

struct ProbedWay {
  std::string peer;
  double round_trip_s = 0;
  std::vector<TrainRate> trains;                   // those that count
  double alone_bytes_s = 0, together_bytes_s = 0;  // of two peers; 0: not measured
};

struct ProbeFinding {
  // kGivenUp: by interrupt().
  enum class Outcome { kMeasured, kBusy, kUnreachable, kGivenUp } outcome = Outcome::kMeasured;
  std::string peer;  // that was busy or could not be reached
  std::string why;
  std::vector<ProbedWay> ways;  // of kMeasured
};

class Prober {
 public:
  explicit Prober(ProbeOrder order);
  ~Prober();

  ProbeFinding run();
  // Any thread: run() ends soon, whatever it waits for.
  void interrupt();

 private:
  class Line;
  Status measure(double most_s);
  Status measure_alone(size_t line, double until_s);
  Status measure_together(double until_s);
  ProbeFinding finding(const Status& status) const;

  ProbeOrder order_;
  std::vector<std::unique_ptr<Line>> lines_;
};

}  // namespace weft::net
