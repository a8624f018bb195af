#include "cli/plan/plan_svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(PlanSvg, DrawsSitesPeersStagesAndWays) {
  broker::PlanReport report;
  report.plan.stages.resize(2);
  report.plan.stages[0].replicas = {"a<1>"};
  report.plan.stages[1].replicas = {"b"};
  report.prediction.stages.resize(2);
  report.prediction.stages[1].busy = 0.5;
  report.prediction.ways = {{0, 1, 4096, 0.1, 0.25}, {1, 0, 4096, 0.1, 3}};
  report.left_out = {{"c", "slow"}};
  report.sites = {{"a<1>", "c"}, {"b"}};
  report.bottleneck = "the link & so on";
  const std::string svg = plan_svg(report);
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  EXPECT_EQ(count(svg, "<line"), 2u);
  EXPECT_EQ(count(svg, "rx='10'"), 2u) << "a box a site";
  EXPECT_EQ(count(svg, "rx='6'"), 3u) << "a box a peer";
  EXPECT_THAT(svg, HasSubstr("a&lt;1&gt;"));
  EXPECT_THAT(svg, HasSubstr("the link &amp; so on"));
  EXPECT_THAT(svg, HasSubstr("stage 1, 0 B, 50 % busy"));
  EXPECT_THAT(svg, HasSubstr("spare"));
  EXPECT_THAT(svg, Not(HasSubstr("a<1>")));
}

}  // namespace
}  // namespace weft::cli
