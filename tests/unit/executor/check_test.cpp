#include "executor/check.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace weft::executor {
namespace {

TEST(Check, ExitCodeAndReportSayWhetherItIsEqual) {
  CheckReport report;
  report.equal = true;
  EXPECT_EQ(exit_code_of(report), 0);
  EXPECT_NE(report_to_text(report).find("\nequal\n"), std::string::npos);
  report.equal = false;
  report.gradient_difference = std::numeric_limits<double>::infinity();
  report.worst = "head.weight";
  EXPECT_EQ(exit_code_of(report), 1);
  EXPECT_NE(report_to_text(report).find("NOT equal"), std::string::npos);
  EXPECT_NE(report_to_text(report).find("head.weight"), std::string::npos);
  EXPECT_TRUE(report_to_json(report)["gradient_difference"].is_null());  // JSON has no infinity
}

TEST(Check, AMissingModelIsAnError) {
  CheckOptions options;
  options.model = "/nonexistent/model.pt2";
  EXPECT_FALSE(check_model(options).ok());
}

}  // namespace
}  // namespace weft::executor
