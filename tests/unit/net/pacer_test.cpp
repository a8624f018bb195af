// The pacer against a simulated link: a rate, a round trip, a bounded queue; time is a number, and
// what the sender learns is a round trip old.
#include "net/tls/pacer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "net/frame/run_meter.h"

namespace weft::net {
namespace {

// Fluid: what is sent beyond the rate queues up to the limit; TCP's window stops the rest.
struct SimulatedLink {
  double rate = 1e6;  // bytes a second
  double round_trip_ms = 20, queue_limit_ms = 100;
  double noise_ms = 0;  // of round trips, up to that
  double carried = 0, queue = 0;
  struct Report {
    double acknowledged = 0, round_trip_ms = 0;
  };
  std::deque<Report> under_way;
  Report report;
  int64_t now_ms = 1000000;
  Pacer pacer;
  bool busy = true, urgent = false, silent = false;  // silent: between bursts
  bool pings = false;                                // in silences
  // What is sent are messages of so many bytes, told as the data plane does; 0: nothing is told.
  double message_bytes = 0;
  double written = 0;
  RunMeter meter;
  std::deque<std::pair<double, MessageKey>> awaited;  // by what was written at their ends

  void tell(double bytes) {
    const double now_s = 1e-3 * static_cast<double>(now_ms);
    const double ended = std::floor(written / message_bytes);
    written += bytes;
    std::optional<MessageKey> ends;
    if (std::floor(written / message_bytes) > ended) {
      ends = MessageKey{};
      ends->step = static_cast<uint64_t>(now_ms);
      awaited.emplace_back(written, *ends);
    }
    meter.writes(now_s, static_cast<uint64_t>(bytes), ends);
    while (!awaited.empty() && awaited.front().first <= report.acknowledged) {
      const auto run = meter.acknowledged(awaited.front().second, now_s, 1e-3 * round_trip_ms, 0);
      if (run) pacer.carried(static_cast<int64_t>(1000 * run->since_s), now_ms, run->bytes_s);
      awaited.pop_front();
    }
  }
  double queue_ms() const { return 1000 * queue / rate; }
  void run(int64_t ms) {
    if (carried == 0) pacer.update(now_ms, 0, round_trip_ms);  // what the handshake measured
    for (const int64_t end = now_ms + ms; now_ms < end; ++now_ms) {
      const double pace =
          pacer.pacing_rate() == 0 ? 1e12 : static_cast<double>(pacer.pacing_rate());
      const double sent = silent ? 0 : busy ? pace / 1000 : rate / 4000;
      const double queued = queue;
      queue = std::min(queue + sent, rate * queue_limit_ms / 1000);
      if (message_bytes > 0) tell(queue - queued);
      const double now = std::min(queue, rate / 1000);
      queue -= now;
      carried += now;
      const double noise = noise_ms * static_cast<double>(now_ms * 7919 % 101) / 100;
      under_way.push_back({carried, round_trip_ms + queue_ms() + noise});
      while (static_cast<double>(under_way.size()) > round_trip_ms) {
        report = under_way.front();
        under_way.pop_front();
      }
      if (silent && !(pings && now_ms % 100 == 0)) continue;
      pacer.note(busy && !silent);
      if (urgent) pacer.note_urgent(now_ms);
      if (pacer.due(now_ms)) {
        pacer.update(now_ms, static_cast<uint64_t>(report.acknowledged), report.round_trip_ms);
      }
    }
  }
};

// The first window of a burst ends before a round trip does, and no other is busy to its end.
TEST(Pacer, AWindowWithoutAnswersMakesNoSmallWrites) {
  Pacer pacer;
  int64_t now_ms = 1000;
  pacer.update(now_ms, 0, 300);
  pacer.note(true);
  pacer.update(now_ms += 200, 0, 300);
  pacer.note(true);
  pacer.update(now_ms += 200, 5000, 300);
  ASSERT_GT(pacer.rate(), 0);
  ASSERT_LT(pacer.rate(), 1e5);
  EXPECT_EQ(pacer.write_bytes(), Pacer::kFirstWrite);
  EXPECT_EQ(pacer.pacing_rate(), 0u);
}

TEST(Pacer, KnowsNothingAtFirst) {
  const Pacer pacer;
  EXPECT_EQ(pacer.pacing_rate(), 0u);
  EXPECT_EQ(pacer.write_bytes(), Pacer::kFirstWrite);
}

RC_GTEST_PROP(Pacer, FindsTheRateAndKeepsTheQueueShort, ()) {
  SimulatedLink link;
  link.rate = *rc::gen::inRange(50, 40000) * 1000.0;
  link.round_trip_ms = *rc::gen::inRange(1, 200);
  link.urgent = *rc::gen::arbitrary<bool>();
  link.run(12000);
  RC_ASSERT(std::abs(link.pacer.rate() - link.rate) < 0.05 * link.rate);
  double queued_ms = 0;
  const double before = link.carried;
  for (int i = 0; i < 200; ++i) {
    link.run(100);
    queued_ms += link.queue_ms() / 200;
  }
  RC_ASSERT((link.carried - before) / 20 > 0.97 * link.rate);
  const double own_ms = 1000 * static_cast<double>(link.pacer.write_bytes()) / link.rate;
  RC_ASSERT(queued_ms < 8 + 0.05 * link.round_trip_ms + own_ms);
  // A millisecond; on a slow link, where headers weigh more, up to five, or sixteen while nothing
  // wants to overtake.
  const double slow =
      std::clamp((link.urgent ? 0.0055 : 0.0176) * link.rate, 1.0 * Pacer::kMinWrite,
                 (link.urgent ? 2.0 : 4.0) * Pacer::kMinWrite);
  RC_ASSERT(static_cast<double>(link.pacer.write_bytes()) <= std::max(0.0011 * link.rate, slow));
}

// As bbr at 80 Mbit/s and 50 ms each way: the queue of the beginning is gone after two seconds, and
// neither probes nor a round trip that wavers cost more than a few per cent.
RC_GTEST_PROP(Pacer, AFarLinkIsFullAndItsQueueShort, ()) {
  SimulatedLink link;
  link.rate = *rc::gen::inRange(1000, 120000) * 1000.0;
  link.round_trip_ms = *rc::gen::inRange(50, 200);
  link.noise_ms = *rc::gen::inRange(0, 3);
  link.queue_limit_ms = 200;
  link.run(5000);
  const double before = link.carried;
  double queued_ms = 0;
  for (int i = 0; i < 200; ++i) {
    link.run(100);
    queued_ms += link.queue_ms() / 200;
  }
  RC_ASSERT((link.carried - before) / 20 > 0.96 * link.rate);
  RC_ASSERT(queued_ms < 25);
  RC_ASSERT(link.pacer.pacing_rate() != 0);
}

TEST(Pacer, AWayThatBecameLongerIsNoQueue) {
  SimulatedLink link;
  link.rate = 10e6;
  link.run(5000);
  link.round_trip_ms += 80;
  link.run(3000);
  const double before = link.carried;
  link.run(10000);
  EXPECT_GT((link.carried - before) / 10, 0.95 * link.rate);
}

TEST(Pacer, FollowsALinkThatBecomesSlower) {
  SimulatedLink link;
  link.run(5000);
  link.rate /= 3;
  link.run(5000);
  EXPECT_NEAR(link.pacer.rate(), link.rate, 0.05 * link.rate);
}

TEST(Pacer, FindsOutThatALinkBecameFaster) {
  SimulatedLink link;
  link.run(5000);
  link.rate *= 4;
  link.run(20000);
  EXPECT_NEAR(link.pacer.rate(), link.rate, 0.05 * link.rate);
}

TEST(Pacer, AFastLinkIsNotPaced) {
  SimulatedLink link;
  link.rate = 1e9;
  link.run(5000);
  EXPECT_EQ(link.pacer.pacing_rate(), 0u);
  EXPECT_EQ(link.pacer.write_bytes(), Pacer::kMaxWrite);
}

// What a drain or a probe left behind would else slow the next burst, or crowd it.
TEST(Pacer, ALullEndsADrainAndAProbe) {
  for (const bool probe : {false, true}) {
    SimulatedLink link;
    link.round_trip_ms = 100;
    link.run(4000);
    const auto reached = [&] {
      const double pace = static_cast<double>(link.pacer.pacing_rate());
      return probe ? pace > 1.05 * link.pacer.rate() : pace < 0.6 * link.pacer.rate();
    };
    for (int i = 0; i < 30000 && !reached(); ++i) link.run(1);
    ASSERT_TRUE(reached()) << probe;
    link.busy = false;
    link.run(1000);
    EXPECT_NEAR(static_cast<double>(link.pacer.pacing_rate()), link.pacer.rate(),
                0.1 * link.pacer.rate());
    EXPECT_FALSE(reached()) << probe;
  }
}

// A pipeline's bursts, a second each or some round trips. The first share the line, and each does
// for a part of it, as where the exchange of a shared weight falls into it. Of what the line could
// carry, the share that it did.
double share_of_bursts(uint64_t seed) {
  Rng rng(derive_seed({seed}));
  const auto between = [&](uint64_t least, uint64_t most) {
    return static_cast<int64_t>(least + rng.below(most - least));
  };
  SimulatedLink link;
  const double full = 1000.0 * static_cast<double>(between(500, 10000));
  const int64_t round_trip_ms = between(10, 100);
  link.round_trip_ms = static_cast<double>(round_trip_ms);
  const int64_t burst_ms = std::max(between(1000, 2500), 18 * round_trip_ms);
  const int64_t lull_ms = between(100, 2000);
  const double share = 0.01 * static_cast<double>(between(50, 100));
  const int64_t shared_at_ms = burst_ms * between(0, 80) / 100, shared_ms = between(0, 150);
  double carried = 0, possible = 0;
  const auto part = [&](int64_t ms, double rate, bool counts) {
    link.rate = rate;
    const double before = link.carried;
    link.run(ms);
    if (!counts) return;
    carried += link.carried - before;
    possible += rate * static_cast<double>(ms) / 1000;
  };
  part(400, full, false);
  for (int burst = 0; burst < 12; ++burst) {
    const double now = burst < 2 ? share * full : full;
    part(shared_at_ms, now, burst >= 6);
    part(shared_ms, share * now, burst >= 6);
    part(burst_ms - shared_at_ms - shared_ms, now, burst >= 6);
    link.pacer.note(false);
    link.silent = true;
    part(lull_ms, now, false);
    link.silent = false;
  }
  return carried / possible;
}

TEST(Pacer, FindsTheRateFromBursts) {
  std::vector<double> shares;
  for (uint64_t seed = 0; seed < 500; ++seed) shares.push_back(share_of_bursts(seed));
  std::sort(shares.begin(), shares.end());
  EXPECT_GT(shares[250], 0.98);
  EXPECT_GT(shares[25], 0.95);
  EXPECT_GT(shares[0], 0.7);
}

// A pause and a message, told as RunMeter does. Milliseconds from its first byte to its last.
double send_message(SimulatedLink& link, double bytes, int64_t pause_ms) {
  link.pacer.note(false);
  link.silent = true;
  link.run(pause_ms);
  link.silent = false;
  const int64_t since_ms = link.now_ms;
  const double before = link.carried;
  while (link.carried + link.queue - before < bytes) link.run(1);
  link.pacer.note(false);
  link.silent = true;
  while (link.carried - before < bytes) link.run(1);
  const double took_ms = static_cast<double>(link.now_ms - since_ms);
  link.run(static_cast<int64_t>(link.round_trip_ms));
  link.pacer.carried(since_ms, link.now_ms, bytes / took_ms * 1000);
  link.silent = false;
  return took_ms;
}

// Messages that take less than a window, one a time, after the line was shared for a while: no
// window tells that it is theirs now. Of the time that the last take, the share that the line
// needs.
double share_of_messages(uint64_t seed) {
  Rng rng(derive_seed({seed, 1}));
  const auto between = [&](uint64_t least, uint64_t most) {
    return static_cast<int64_t>(least + rng.below(most - least));
  };
  SimulatedLink link;
  const double full = 1000.0 * static_cast<double>(between(1500, 10000));
  link.round_trip_ms = static_cast<double>(between(10, 60));
  link.rate = 0.01 * static_cast<double>(between(40, 80)) * full;
  link.run(3000);
  link.rate = full;
  const int64_t pause_ms = between(80, 600);
  const double bytes = 0.001 * static_cast<double>(between(105, 180)) * full;
  double needed_ms = 0, taken_ms = 0;
  link.pings = seed % 2 == 0;
  for (int message = 0; message < 40; ++message) {
    const double took_ms = send_message(link, bytes, pause_ms);
    if (message < 20) continue;
    needed_ms += 1000 * bytes / full;
    taken_ms += took_ms;
  }
  return needed_ms / taken_ms;
}

TEST(Pacer, FindsTheRateFromMessages) {
  std::vector<double> shares;
  for (uint64_t seed = 0; seed < 300; ++seed) shares.push_back(share_of_messages(seed));
  std::sort(shares.begin(), shares.end());
  EXPECT_GT(shares[150], 0.97);
  EXPECT_GT(shares[0], 0.9);
}

TEST(Pacer, MessagesTellThatTheLineBecameSlower) {
  for (const double round_trip_ms : {20.0, 150.0}) {
    SimulatedLink link;
    link.round_trip_ms = round_trip_ms;
    link.run(5000);
    const double bytes = 0.18 * link.rate;
    for (int message = 0; message < 5; ++message) send_message(link, bytes, 300);
    link.rate *= 0.36;
    for (int message = 0; message < 8; ++message) send_message(link, bytes, 300);
    const auto pace = static_cast<double>(link.pacer.pacing_rate());
    EXPECT_LT(pace, 1.3 * link.rate) << "or none, until windows tell one";
  }
}

// What a message once was allowed to try is not what a long one goes by: its windows judge that.
TEST(Pacer, ALongMessageBehindShortOnesBuildsNoQueue) {
  SimulatedLink link;
  link.rate = 0.6e6;
  link.queue_limit_ms = 1000;
  link.run(3000);
  link.rate = 1e6;
  bool raised = false;
  for (int message = 0; message < 40 && !raised; ++message) {
    const double before = link.pacer.rate();
    send_message(link, 0.14 * link.rate, 300);
    raised = link.pacer.rate() > before && link.pacer.pacing_rate() > 1.15 * link.pacer.rate();
  }
  ASSERT_TRUE(raised);
  link.run(3000);
  double queued_ms = 0;
  for (int i = 0; i < 50; ++i) {
    link.run(100);
    queued_ms += link.queue_ms() / 50;
  }
  EXPECT_LT(queued_ms, 30);
  EXPECT_LT(link.queue_ms(), 150);
}

// The pieces of a stream are runs, too; those that went behind a queue or while one is drained say
// nothing of the line.
RC_GTEST_PROP(Pacer, AStreamOfMessagesStaysPacedBehindADeepBuffer, ()) {
  SimulatedLink link;
  link.rate = *rc::gen::inRange(300, 5000) * 1000.0;
  link.round_trip_ms = *rc::gen::inRange(5, 200);
  link.queue_limit_ms = *rc::gen::inRange(100, 1500);
  link.message_bytes = *rc::gen::inRange(50, 1000) * 1000.0;
  link.run(10000);
  double queued_ms = 0;
  for (int i = 0; i < 400; ++i) {
    link.run(50);
    queued_ms += link.queue_ms() / 400;
    RC_ASSERT(link.pacer.pacing_rate() != 0u);
  }
  const double own_ms = 1000 * static_cast<double>(link.pacer.write_bytes()) / link.rate;
  RC_ASSERT(queued_ms < 8 + 0.05 * link.round_trip_ms + own_ms);
}

TEST(Pacer, APauseWithPingsForgetsNothing) {
  SimulatedLink link;
  link.pings = true;
  link.run(5000);
  const uint64_t pace = link.pacer.pacing_rate();
  ASSERT_NE(pace, 0u);
  link.pacer.note(false);
  link.silent = true;
  link.run(120000);
  EXPECT_GT(link.pacer.pacing_rate(), pace * 8 / 10);
}

// Shorter than anything that tells a rate: it may be one of long ago.
TEST(Pacer, ARateThatNothingTellsOfIsForgotten) {
  SimulatedLink link;
  link.run(5000);
  ASSERT_NE(link.pacer.pacing_rate(), 0u);
  for (int message = 0; message < 60; ++message) {
    link.run(50);
    link.pacer.note(false);
    link.silent = true;
    link.run(300);
    link.silent = false;
  }
  EXPECT_EQ(link.pacer.pacing_rate(), 0u);
}

// A message a second: the silence before it is no slow link. (One took a link of 200 Mbit/s for one
// of 114 bytes a second and was stuck until its timeout.)
TEST(Pacer, SilenceBeforeAMessageIsNoSlowLink) {
  Pacer pacer;
  int64_t now_ms = 0;
  uint64_t acknowledged = 0;
  pacer.update(now_ms, acknowledged, 100);
  for (int message = 0; message < 50; ++message) {
    now_ms += 1000;
    for (const bool more : {true, true, false}) {
      pacer.note(more);
      if (pacer.due(now_ms)) pacer.update(now_ms, acknowledged, 100);
      EXPECT_EQ(pacer.pacing_rate(), 0u);
      EXPECT_EQ(pacer.rate(), 0);
      now_ms += 3;
    }
    acknowledged += 50;  // during the silence
  }
}

TEST(Pacer, ASenderWithLittleToSayLearnsNothing) {
  SimulatedLink link;
  link.run(5000);
  const double rate = link.pacer.rate();
  link.busy = false;
  link.run(60000);
  EXPECT_EQ(link.pacer.rate(), rate);
  EXPECT_LE(link.pacer.write_bytes(), Pacer::kFirstWrite);
}

TEST(Pacer, WritesOnASlowLinkAreShortWhileMessagesOvertake) {
  SimulatedLink link;
  link.run(5000);
  const size_t bulk = link.pacer.write_bytes();
  EXPECT_TRUE(link.pacer.note_urgent(link.now_ms));
  const size_t urgent = link.pacer.write_bytes();
  EXPECT_LT(3 * urgent, bulk);
  EXPECT_FALSE(link.pacer.note_urgent(link.now_ms));  // nothing new
  link.run(Pacer::kUrgentMemoryMs / 2);
  EXPECT_EQ(link.pacer.write_bytes(), urgent);
  link.run(Pacer::kUrgentMemoryMs);
  EXPECT_GT(link.pacer.write_bytes(), 3 * urgent);
}

}  // namespace
}  // namespace weft::net
