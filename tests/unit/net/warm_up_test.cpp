// The warm-up against a simulated start of TCP: a window that doubles each round trip until the way
// is full; time is a number.
#include "net/tls/warm_up.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

namespace weft::net {
namespace {

struct SimulatedStart {
  double rate = 50e6;  // bytes a second
  double round_trip_ms = 100;
  double window = 14480;  // bytes a round trip at first
  double acknowledged = 5000;
  int64_t now_ms = 70000, began_ms = 70000;
  WarmUp warm_up;

  bool begin(uint64_t message_bytes) {
    return warm_up.begin(now_ms, message_bytes, static_cast<uint64_t>(acknowledged), round_trip_ms);
  }
  // Until it ends. scheduled_late_ms: whoever looks does so that much after it is due.
  void run(int64_t scheduled_late_ms = 0) {
    const double full = rate * round_trip_ms / 1000;
    double next_round = static_cast<double>(now_ms) + round_trip_ms;
    while (warm_up.filling() && now_ms < began_ms + 4 * WarmUp::kMaxMs) {
      ++now_ms;
      const double bytes = std::min(window, full) / round_trip_ms;
      acknowledged += bytes;
      warm_up.note_padding(static_cast<size_t>(bytes));
      if (static_cast<double>(now_ms) >= next_round) {
        window = std::min(2 * window, full);
        next_round += round_trip_ms;
      }
      if (warm_up.due(now_ms - scheduled_late_ms)) {
        warm_up.update(now_ms, static_cast<uint64_t>(acknowledged), round_trip_ms);
      }
    }
  }
  double round_trip_bytes() const { return warm_up.rate() * round_trip_ms / 1000; }
};

TEST(WarmUp, AShortWayIsNotFilled) {
  SimulatedStart start;
  start.round_trip_ms = WarmUp::kFarMs - 0.1;
  EXPECT_FALSE(start.begin(1 << 20));
  EXPECT_TRUE(start.warm_up.begun());
  EXPECT_FALSE(start.warm_up.filling());
  EXPECT_FALSE(start.warm_up.keep_warm(start.now_ms + 1000, start.now_ms, "cubic"));
}

TEST(WarmUp, AConnectionIsFilledOnce) {
  SimulatedStart start;
  ASSERT_TRUE(start.begin(1 << 18));
  EXPECT_FALSE(start.begin(1 << 18));
  start.run();
  ASSERT_FALSE(start.warm_up.filling());
  EXPECT_FALSE(start.begin(1 << 20)) << "a larger message does not start it again";
  EXPECT_FALSE(start.warm_up.filling());
}

// Whatever the way: it ends within its bounds, and then a round trip brought enough for the
// messages, or all that the way carries.
RC_GTEST_PROP(WarmUp, EndsWithEnoughOrAFullWay, ()) {
  SimulatedStart start;
  start.rate = *rc::gen::inRange<int>(100, 1000000) * 1e3;
  start.round_trip_ms = *rc::gen::inRange<int>(5, 500);
  const auto message = static_cast<uint64_t>(*rc::gen::inRange<int>(4096, 64 << 20));
  const int64_t late_ms = *rc::gen::inRange<int64_t>(0, 20);
  RC_ASSERT(start.begin(message));
  start.run(late_ms);
  RC_ASSERT(!start.warm_up.filling());
  const double full = start.rate * start.round_trip_ms / 1000;
  const double window_ms = std::max(start.round_trip_ms, 10.0) + 2.0 + static_cast<double>(late_ms);
  const auto took_ms = static_cast<double>(start.now_ms - start.began_ms);
  RC_ASSERT(took_ms <= static_cast<double>(WarmUp::kMaxMs) + window_ms);
  const auto most = static_cast<double>(WarmUp::kMaxBytes) + start.rate * window_ms / 1000;
  RC_ASSERT(static_cast<double>(start.warm_up.padding_bytes()) <= most);
  const bool cut = static_cast<double>(start.warm_up.padding_bytes()) >=
                       static_cast<double>(WarmUp::kMaxBytes) ||
                   took_ms >= static_cast<double>(WarmUp::kMaxMs);
  // Half: a round trip of ours lies across two of TCP's.
  const double enough = static_cast<double>(WarmUp::kEnough * message);
  RC_ASSERT(cut || start.round_trip_bytes() >= 0.5 * std::min(enough, full));
}

TEST(WarmUp, SmallMessagesCostLittlePadding) {
  SimulatedStart start;
  ASSERT_TRUE(start.begin(WarmUp::kLargeBytes));
  start.run();
  EXPECT_LT(start.warm_up.padding_bytes(), 4 * WarmUp::kEnough * WarmUp::kLargeBytes);
}

TEST(WarmUp, AWayThatCarriesNothingEndsIt) {
  SimulatedStart start;
  ASSERT_TRUE(start.begin(1 << 20));
  for (int i = 0; i < 10 && start.warm_up.filling(); ++i) {
    start.now_ms += 200;
    start.warm_up.update(start.now_ms, static_cast<uint64_t>(start.acknowledged), 100);
  }
  EXPECT_FALSE(start.warm_up.filling());
  EXPECT_EQ(start.warm_up.rate(), 0);
}

TEST(WarmUp, TheKernelHoldsMoreTheMoreTheWayCarries) {
  SimulatedStart start;
  ASSERT_TRUE(start.begin(64 << 20));
  EXPECT_EQ(start.warm_up.unsent_bytes(), 64u * 1024);
  start.run();
  EXPECT_GT(start.warm_up.unsent_bytes(), 512u * 1024);
  EXPECT_LE(start.warm_up.unsent_bytes(), 1024u * 1024);
}

TEST(WarmUp, PingsKeepAWayWarmWhileItHasMessages) {
  SimulatedStart start;
  ASSERT_TRUE(start.begin(1 << 18));
  const WarmUp& warm_up = start.warm_up;
  const int64_t now = start.now_ms;
  EXPECT_TRUE(warm_up.keep_warm(now + WarmUp::kPingMs, now, "cubic"));
  EXPECT_FALSE(warm_up.keep_warm(now + WarmUp::kPingMs - 1, now, "cubic"));
  EXPECT_FALSE(warm_up.keep_warm(now + WarmUp::kPingMs, now, "bbr")) << "it does not forget";
  EXPECT_FALSE(warm_up.keep_warm(now + WarmUp::kPauseMs, now, "cubic")) << "nothing to carry";
  start.warm_up.note_large(now + WarmUp::kPauseMs);
  EXPECT_TRUE(warm_up.keep_warm(now + WarmUp::kPauseMs, now, "cubic"));
}

// A burst of so long, of messages handed over at its beginning.
void burst(WarmUp& warm_up, int64_t now_ms, int64_t took_ms) {
  warm_up.note_large(now_ms);
  warm_up.note_large(now_ms + took_ms / 2);
  warm_up.note_last(now_ms + took_ms);
}

TEST(WarmUp, BbrBeginsAnewAfterABurstTooShortForItsSearch) {
  SimulatedStart start;
  ASSERT_TRUE(start.begin(1 << 18));
  WarmUp& warm_up = start.warm_up;
  const int64_t now = start.now_ms;
  EXPECT_FALSE(warm_up.rests());
  burst(warm_up, now, 399);
  ASSERT_TRUE(warm_up.rests());
  EXPECT_TRUE(warm_up.start_anew(now + 450, 110, 100, false));
  EXPECT_FALSE(warm_up.rests()) << "once a burst";
  burst(warm_up, now + 1000, 400);
  ASSERT_TRUE(warm_up.rests());
  EXPECT_FALSE(warm_up.start_anew(now + 1450, 110, 100, false)) << "it could search itself";
  EXPECT_FALSE(warm_up.rests());
}

// Begun anew again and again, it would never find out how little the way carries, and fill queues.
TEST(WarmUp, BbrDoesNotBeginAnewOverAStandingQueue) {
  for (const bool starting_up : {false, true}) {
    SimulatedStart start;
    ASSERT_TRUE(start.begin(1 << 18));
    WarmUp& warm_up = start.warm_up;
    burst(warm_up, start.now_ms, 50);
    EXPECT_FALSE(warm_up.start_anew(start.now_ms + 90, 70, 30, starting_up));
    burst(warm_up, start.now_ms + 1000, 125);
    EXPECT_FALSE(warm_up.start_anew(start.now_ms + 1200, 31, 30, starting_up)) << "long enough";
    burst(warm_up, start.now_ms + 2000, 50);
    EXPECT_TRUE(warm_up.start_anew(start.now_ms + 2090, 31, 30, starting_up));
    burst(warm_up, start.now_ms + 9000, 50);
    EXPECT_TRUE(warm_up.start_anew(start.now_ms + 9090, 70, 0, starting_up)) << "none is known";
  }
}

// While it starts up it need not, but every five seconds, or it stops to see the shortest round
// trip in the middle of a burst.
TEST(WarmUp, BbrThatStartsUpBeginsAnewNowAndThen) {
  SimulatedStart start;
  ASSERT_TRUE(start.begin(1 << 18));
  WarmUp& warm_up = start.warm_up;
  std::vector<int64_t> anew;
  for (int64_t now = start.now_ms; now < start.now_ms + 30000; now += 700) {
    burst(warm_up, now, 50);
    if (warm_up.start_anew(now + 60, 110, 100, true)) anew.push_back(now);
  }
  ASSERT_GE(anew.size(), 5u);
  for (size_t i = 1; i < anew.size(); ++i) {
    EXPECT_GE(anew[i] - anew[i - 1], WarmUp::kAnewMs);
    EXPECT_LE(anew[i] - anew[i - 1], WarmUp::kAnewMs + 700);
  }
}

TEST(WarmUp, OnAShortWayNothingBeginsAnew) {
  SimulatedStart start;
  start.round_trip_ms = WarmUp::kFarMs - 0.1;
  start.begin(1 << 18);
  burst(start.warm_up, start.now_ms, 10);
  EXPECT_FALSE(start.warm_up.rests());
}

}  // namespace
}  // namespace weft::net
