// The pacer against a simulated link: a rate, a round trip, a bounded queue; time is a number.
#include "net/tls/pacer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace weft::net {
namespace {

// Fluid: what is sent beyond the rate queues up to the limit; TCP's window stops the rest.
struct SimulatedLink {
  double rate = 1e6;  // bytes a second
  double round_trip_ms = 20, queue_limit_ms = 100;
  double acknowledged = 0, queue = 0;
  int64_t now_ms = 0;
  Pacer pacer;
  bool busy = true;

  double queue_ms() const { return 1000 * queue / rate; }
  void run(int64_t ms) {
    for (const int64_t end = now_ms + ms; now_ms < end; ++now_ms) {
      const double pace =
          pacer.pacing_rate() == 0 ? 1e12 : static_cast<double>(pacer.pacing_rate());
      const double sent = busy ? pace / 1000 : rate / 4000;
      queue = std::min(queue + sent, rate * queue_limit_ms / 1000);
      const double carried = std::min(queue, rate / 1000);
      queue -= carried;
      acknowledged += carried;
      pacer.note(busy);
      if (pacer.due(now_ms)) {
        pacer.update(now_ms, static_cast<uint64_t>(acknowledged), round_trip_ms + queue_ms());
      }
    }
  }
};

TEST(Pacer, KnowsNothingAtFirst) {
  const Pacer pacer;
  EXPECT_EQ(pacer.pacing_rate(), 0u);
  EXPECT_EQ(pacer.write_bytes(), Pacer::kFirstWrite);
}

RC_GTEST_PROP(Pacer, FindsTheRateAndKeepsTheQueueShort, ()) {
  SimulatedLink link;
  link.rate = *rc::gen::inRange(50, 40000) * 1000.0;
  link.round_trip_ms = *rc::gen::inRange(1, 200);
  link.run(12000);
  RC_ASSERT(std::abs(link.pacer.rate() - link.rate) < 0.05 * link.rate);
  double queued_ms = 0;
  const double before = link.acknowledged;
  for (int i = 0; i < 200; ++i) {
    link.run(100);
    queued_ms += link.queue_ms() / 200;
  }
  RC_ASSERT((link.acknowledged - before) / 20 > 0.95 * link.rate);
  RC_ASSERT(queued_ms < 0.4 * link.queue_limit_ms);
  RC_ASSERT(static_cast<double>(link.pacer.write_bytes()) <=
            std::max<double>(Pacer::kMinWrite, 0.0011 * link.rate));
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

TEST(Pacer, ASenderWithLittleToSayLearnsNothing) {
  SimulatedLink link;
  link.run(5000);
  const double rate = link.pacer.rate();
  link.busy = false;
  link.run(60000);
  EXPECT_EQ(link.pacer.rate(), rate);
  EXPECT_LE(link.pacer.write_bytes(), Pacer::kMinWrite);
}

}  // namespace
}  // namespace weft::net
