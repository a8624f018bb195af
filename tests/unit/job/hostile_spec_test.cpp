// Job files that nest or repeat beyond reason: an error, soon, and no deep recursion.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "job/json_read.h"
#include "job/spec.h"
#include "job/worker_spec.h"

namespace weft::job {
namespace {

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

class HostileSpec : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_LT(std::chrono::steady_clock::now() - start_, std::chrono::seconds(20));
  }
  static Code code_of(const std::string& toml, const std::vector<std::string>& overrides = {}) {
    const auto spec = parse_job_toml(toml, "/jobs", overrides);
    return spec.ok() ? Code::kInternal : spec.error().code;
  }
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

TEST_F(HostileSpec, NestedTomlIsRefused) {
  EXPECT_EQ(code_of("name = " + repeated("[", 100000)), Code::kInvalid);
  EXPECT_EQ(code_of("name = " + repeated("[", 100000) + repeated("]", 100000)), Code::kInvalid);
  EXPECT_EQ(code_of("name = " + repeated("{a=", 100000)), Code::kInvalid);
  EXPECT_EQ(code_of("[" + repeated("a.", 100000) + "a]\nx = 1\n"), Code::kInvalid);
  EXPECT_EQ(code_of(repeated("a.", 100000) + "a = 1\n"), Code::kInvalid);
}

// Brackets and dots in texts and comments are no nesting, whatever the quotes.
TEST_F(HostileSpec, OnlyWhatNestsCounts) {
  const std::string noise = repeated("[.", 200), dotted = repeated("a.", 100) + "a=1";
  const auto fine = [](const std::string& toml) {
    const auto spec = parse_job_toml(toml, "/jobs", {});
    return !spec.ok() && spec.error().message.find("nested deeper") == std::string::npos;
  };
  EXPECT_TRUE(fine("name = \"" + noise + "\"\n"));
  EXPECT_TRUE(fine("name = '" + noise + "'\n"));
  EXPECT_TRUE(fine("name = \"\"\"a\"" + noise + "\n" + noise + "\"\"\"\n"));
  EXPECT_TRUE(fine("name = '''a'" + noise + "\n" + noise + "'''\n"));
  EXPECT_TRUE(fine("name = \"\\\"" + noise + "\"\n"));
  EXPECT_TRUE(fine("# " + noise + "\nname = \"x\"\n"));
  EXPECT_TRUE(fine("name = [" + repeated("1.5, ", 500) + "]\n"));
  EXPECT_FALSE(fine("name = \"\"\n" + dotted));
  EXPECT_FALSE(fine("a = '''x'''\n" + dotted));
  EXPECT_FALSE(fine("a = \"\"\"x\\\"\"\"\"\n" + dotted));
  EXPECT_FALSE(
      fine("a = [\"\"\"x\"\"\"\"\", {" + dotted + "}]"));  // ends with two quotes of its own
  EXPECT_FALSE(fine("a = ['''x'''', {" + dotted + "}]"));
  EXPECT_FALSE(fine("a = ['x\\', {" + dotted + "}]"));
  EXPECT_FALSE(fine(repeated("\"a\".", 100) + "a = 1\n"));
}

TEST_F(HostileSpec, OverridesThatNestAreRefused) {
  EXPECT_EQ(code_of("name = \"x\"\n", {"train.lr=" + repeated("[", 100000)}), Code::kInvalid);
  EXPECT_EQ(code_of("name = \"x\"\n", {repeated("a.", 100000) + "a=1"}), Code::kInvalid);
}

TEST_F(HostileSpec, MegabytesOfGarbageAreRefused) {
  EXPECT_NE(code_of(std::string(8 << 20, 'a')), Code::kInternal);
  EXPECT_NE(code_of(repeated("[[group]]\nmatch = \"*\"\n", 100000)), Code::kInternal);
  EXPECT_NE(code_of(std::string(1 << 20, '\0')), Code::kInternal);
}

TEST_F(HostileSpec, NumbersOutOfRangeAreRefused) {
  const std::string head = "name = \"x\"\nmodel = \"m\"\nloss = \"graph\"\n[data]\ntrain = \"t\"\n";
  for (const char* bad : {"steps = -1", "steps = 9223372036854775807", "batch = 0", "lr = nan",
                          "lr = inf", "lr = -1.0", "batch = 1e3", "seed = -1"}) {
    EXPECT_NE(code_of(head + "[train]\n" + bad + "\n"), Code::kInternal) << bad;
  }
}

TEST_F(HostileSpec, NestedJsonOfAWorkerIsRefused) {
  const auto spec = parse_json("{\"spec\":" + repeated("[", 1 << 20), "spec");
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.error().code, Code::kTooLarge);
}

}  // namespace
}  // namespace weft::job
