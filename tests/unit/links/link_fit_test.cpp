// One direction: fits, and what probes and work say of it.
#include "broker/links/link_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "probed.h"

namespace weft::broker {
namespace {

TEST(LinkRecord, FitsThroughNoiseAndOutliers) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    LinkRecord record;
    for (int64_t k = 0; k < 3; ++k) {
      ProbedLink link = probed(0.020 + 0.001 * double(k), 5e6, 0.05, seed * 10 + uint64_t(k));
      link.trains[seed % 3].seconds += 0.3;  // one of three stood still
      ASSERT_TRUE(record.add(link, 1000 * k));
    }
    const auto fit = record.fit();
    ASSERT_TRUE(fit);
    EXPECT_DOUBLE_EQ(fit->latency_s, 0.010) << "the shortest round trip";
    EXPECT_NEAR(fit->seconds_per_byte * 5e6, 1, 0.08) << seed;
  }
}

TEST(LinkRecord, RealMessagesRefitIt) {
  LinkRecord record;
  EXPECT_FALSE(record.add_traffic({1e6, 0}, 0)) << "the latency is not known yet";
  ASSERT_TRUE(record.add(probed(0.020, 5e6), 0));
  // Others shared the line: it carries half as much now, and as much as ever.
  EXPECT_FALSE(record.add_traffic({2.5e6, 0}, 1000));
  EXPECT_NEAR(record.fit()->seconds_per_byte * 5e6, 1, 1e-9);
  EXPECT_FALSE(record.fit()->carried);
  // Others shared it while it was probed.
  ASSERT_TRUE(record.add_traffic({9e6, 0}, 2000));
  EXPECT_NEAR(record.fit()->seconds_per_byte * 9e6, 1, 1e-9);
  EXPECT_TRUE(record.fit()->carried);
  EXPECT_FALSE(record.add_traffic({9.1e6, 0}, 2500)) << "nothing new";
  auto again = LinkRecord::from_json(nlohmann::json::parse(record.to_json().dump()));
  EXPECT_NEAR(again->fit()->seconds_per_byte * 9e6, 1, 1e-9);
  // An hour later a probe counts again.
  ASSERT_TRUE(record.add(probed(0.020, 4e6), 3600000));
  EXPECT_NEAR(record.fit()->seconds_per_byte * 4e6, 1, 0.1);
}

TEST(LinkRecord, AWayThatWasNeverProbedIsKnownByWork) {
  LinkRecord record;
  EXPECT_FALSE(record.add_traffic({0, 0.030}, 0)) << "a latency alone is no measured way";
  EXPECT_TRUE(record.empty());
  ASSERT_TRUE(record.add_traffic({6e6, 0.030}, 0));
  EXPECT_DOUBLE_EQ(record.fit()->latency_s, 0.015);
  EXPECT_NEAR(record.fit()->seconds_per_byte * 6e6, 1, 1e-9);
  EXPECT_TRUE(record.fit()->carried);
  EXPECT_LT(record.probed_ms(), 0) << "to be probed all the same";
  // Less within half an hour is a shared line; later it is what the line has become.
  EXPECT_FALSE(record.add_traffic({3e6, 0.030}, 1000));
  ASSERT_TRUE(record.add_traffic({3e6, 0.030}, 2000000));
  EXPECT_NEAR(record.fit()->seconds_per_byte * 3e6, 1, 1e-9);
  // Probes say more than work could show.
  ASSERT_TRUE(record.add(probed(0.030, 8e6), 2000001));
  EXPECT_NEAR(record.fit()->seconds_per_byte * 8e6, 1, 1e-9);
  EXPECT_FALSE(record.fit()->carried);
}

TEST(LinkRecord, WorkThatGoesOnConfirmsItsRate) {
  constexpr int64_t kMinute = 60000;
  for (const bool goes_on : {false, true}) {
    LinkRecord record;
    ASSERT_TRUE(record.add(probed(0.020, 5e6), 0));
    ASSERT_TRUE(record.add_traffic({9e6, 0}, 0));
    size_t stored = 0;
    for (int64_t now = 0; goes_on && now < 50 * kMinute; now += 1000) {
      stored += record.add_traffic({8.8e6, 0}, now);
    }
    EXPECT_LE(stored, 10u) << "what is known is not stored again and again";
    // Half an hour after it was first told: a probe among other flows.
    ASSERT_TRUE(record.add(probed(0.020, 5e6), 51 * kMinute));
    EXPECT_NEAR(record.fit()->seconds_per_byte * (goes_on ? 8.8e6 : 5e6), 1, 1e-9);
  }
}

TEST(LinkRecord, AShorterRoundTripOfWorkCounts) {
  LinkRecord record;
  ASSERT_TRUE(record.add(probed(0.020, 5e6), 0));
  EXPECT_FALSE(record.add_traffic({0, 0.030}, 1000)) << "that one waited";
  EXPECT_FALSE(record.add_traffic({0, 0.0199}, 1000)) << "no news";
  ASSERT_TRUE(record.add_traffic({0, 0.012}, 1000));
  EXPECT_DOUBLE_EQ(record.fit()->latency_s, 0.006);
  EXPECT_NEAR(record.fit()->seconds_per_byte * 5e6, 1, 1e-9);
}

TEST(LinkRecord, WhatWorkFallsBehindByForLongIsWhatTheWayHasBecome) {
  for (const bool probed_before : {false, true}) {
    LinkRecord record;
    ASSERT_TRUE(probed_before ? record.add(probed(0.020, 5e6), 0)
                              : record.add_traffic({5e6, 0.020}, 0));
    int64_t now = 0;
    const auto told = [&](double bytes_s, int reports) {
      bool news = false;
      for (int i = 0; i < reports; ++i) {
        news = record.add_traffic({bytes_s * (i == 4 ? 1 : 0.9), 0.020}, now += 20000) || news;
      }
      return news;
    };
    EXPECT_FALSE(told(2e6, 7)) << "others may share it for a while";
    told(4.9e6, 1);
    EXPECT_FALSE(told(2e6, 7)) << "it was as before in between";
    EXPECT_TRUE(told(2e6, 1));
    EXPECT_NEAR(record.fit()->seconds_per_byte * 2e6, 1, 1e-9) << "the best of that while";
    EXPECT_TRUE(record.fit()->carried);
    EXPECT_LT(record.probed_ms(), 0) << "to be probed again";
    EXPECT_TRUE(told(4e6, 1)) << "better counts at once";
    EXPECT_NEAR(record.fit()->seconds_per_byte * (0.9 * 4e6), 1, 1e-9);
  }
}

// Rates are told of a minute, and a message may have been under way when the way changed.
TEST(LinkRecord, WhatWasUnderWayWhenAWayChangedIsNotWhatItHasBecome) {
  for (const double mixed : {0.65, 0.5, 0.42}) {
    LinkRecord record;
    ASSERT_TRUE(record.add(probed(0.020, 5e6), 0));
    int64_t now = 0;
    for (int report = 0; record.probed_ms() >= 0; ++report) {
      ASSERT_LT(now, 4 * 60000) << "it is told within so long";
      now += 10000;
      record.add_traffic({5e6 * (report < 6 ? mixed : 0.3), 0.020}, now);
    }
    EXPECT_NEAR(record.fit()->seconds_per_byte * 0.3 * 5e6, 1, 1e-9) << mixed;
  }
}

TEST(LinkRecord, AfterAPauseOneReportDecidesNothing) {
  LinkRecord record;
  ASSERT_TRUE(record.add(probed(0.020, 5e6), 0));
  for (int64_t i = 1; i <= 10; ++i) EXPECT_FALSE(record.add_traffic({2.5e6, 0.02}, 5000 * i));
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(record.add_traffic({1e6, 0.02}, 300000 + 5000 * i));
  }
  EXPECT_TRUE(record.add_traffic({2e6, 0.02}, 315000));
  EXPECT_NEAR(record.fit()->seconds_per_byte * 2e6, 1, 1e-9);
}

TEST(LinkRecord, ManyShortfallsInAMomentAreOne) {
  LinkRecord record;
  ASSERT_TRUE(record.add(probed(0.020, 5e6), 0));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(record.add_traffic({2e6, 0.02}, 1000 * i));
  // Two that are far apart say nothing of the time between.
  LinkRecord rarely;
  ASSERT_TRUE(rarely.add(probed(0.020, 5e6), 0));
  for (int64_t i = 0; i < 100; ++i) EXPECT_FALSE(rarely.add_traffic({2e6, 0.02}, 700000 * i));
}

TEST(LinkRecord, AWayThatBecameLongerIsToldByItsShortestRoundTripOfLate) {
  LinkRecord record;
  ASSERT_TRUE(record.add(probed(0.020, 5e6), 0));
  bool news = false;
  for (int64_t i = 1; i <= 8; ++i) {
    EXPECT_FALSE(news);
    EXPECT_DOUBLE_EQ(record.fit()->latency_s, 0.010);
    news = record.add_traffic({0, i == 3 ? 0.060 : 0.090}, 20000 * i);
  }
  EXPECT_TRUE(news);
  EXPECT_NEAR(record.fit()->latency_s, 0.030, 1e-12);
  EXPECT_NEAR(record.fit()->seconds_per_byte * 5e6, 1, 1e-9);
  ASSERT_TRUE(record.add_traffic({0, 0.020}, 300000));
  EXPECT_DOUBLE_EQ(record.fit()->latency_s, 0.010);
  // A queue of some milliseconds is no way.
  LinkRecord lan;
  ASSERT_TRUE(lan.add(probed(0.0002, 5e6), 0));
  for (int64_t i = 1; i <= 100; ++i) EXPECT_FALSE(lan.add_traffic({0, 0.004}, 20000 * i));
}

// A way that changes at times, and messages that share it with others most of the time.
TEST(LinkRecord, FollowsAWayThatChangesBothWays) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    double truth = 5e6;
    LinkRecord record;
    ASSERT_TRUE(record.add(probed(0.020, truth), 0));
    int64_t now = 0;
    for (int change = 0; change < 6; ++change) {
      truth = 1e6 * std::exp2(4 * rng.uniform() - 1);
      const int64_t until = now + 10 * 60000;
      for (int report = 0; now < until; ++report) {
        now += 5000 + static_cast<int64_t>(5000 * rng.uniform());
        const double share = report % 6 == 0 ? 1 : 0.4 + 0.6 * rng.uniform();
        record.add_traffic({truth * share, 0.020}, now);
        const double said = 1 / record.fit()->seconds_per_byte;
        if (now > until - 5 * 60000) {
          EXPECT_GT(said, 0.94 * truth) << now;
          EXPECT_LT(said * 0.69, truth) << now;
        }
      }
    }
  }
}

TEST(LinkRecord, ImpossibleTrafficIsLeftOut) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const bool known : {false, true}) {
    LinkRecord record;
    ASSERT_EQ(known && record.add(probed(0.020, 5e6), 0), known);
    const auto before = record.to_json();
    for (const double rate : {nan, inf, -inf, 0.0, -6e6, 1e30}) {
      for (const double trip : {nan, inf, 0.0, -0.010, 1e9}) {
        EXPECT_FALSE(record.add_traffic({rate, trip}, 1000)) << rate << " " << trip;
      }
    }
    EXPECT_EQ(record.to_json(), before);
  }
}

TEST(LinkRecord, ImpossibleNumbersAreLeftOut) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  LinkRecord record;
  for (const double trip : {nan, inf, 0.0, -1.0, 1e9}) {
    ProbedLink link;
    link.round_trip_s = trip;
    link.trains = {{nan, 1},  {1, nan},   {-5, 1},      {5, -1},
                   {1e30, 1}, {inf, inf}, {1e6, 1e-12}, {1, 1e9}};
    EXPECT_FALSE(record.add(link, 0));
  }
  EXPECT_TRUE(record.empty());
  ProbedLink many = probed(0.01, 1e6);
  many.trains.assign(100000, {1e6, 1});
  EXPECT_TRUE(record.add(many, 0));
  const auto json = record.to_json();
  EXPECT_LE(json.at("samples").size(), LinkRecord::kMaxSamples);
}

TEST(LinkRecord, SurvivesAsJsonAndAges) {
  LinkRecord record;
  ASSERT_TRUE(record.add(probed(0.004, 2e6), 500));
  auto again = LinkRecord::from_json(nlohmann::json::parse(record.to_json().dump()));
  ASSERT_TRUE(again.ok());
  EXPECT_DOUBLE_EQ(again->fit()->seconds_per_byte, record.fit()->seconds_per_byte);
  EXPECT_EQ(again->probed_ms(), 500);
  EXPECT_FALSE(LinkRecord::from_json(nlohmann::json::parse(R"({"trips":3})")).ok());
  again->forget_before(501);
  EXPECT_TRUE(again->empty());
}

}  // namespace
}  // namespace weft::broker
