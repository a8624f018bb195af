#include "cli/verbs/pages.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace weft::cli {
namespace {

using nlohmann::json;

// A broker with `rows` rows, two a page, and an evaluation at every third.
struct Feed {
  int64_t rows = 0;
  int calls = 0;

  Result<json> operator()(const std::string& target) {
    ++calls;
    const auto after = std::stoll(target.substr(target.find("after=") + 6));
    json page = {{"steps", json::array()}, {"evals", json::array()}, {"next", after}};
    for (int64_t i = after + 1; i <= std::min(rows, int64_t{after} + 2); ++i) {
      page["steps"].push_back({{"step", i}});
      if (i % 3 == 0) page["evals"].push_back({{"step", i}});
      page["next"] = i;
    }
    return page;
  }
};

TEST(Pages, AreFollowedToTheEndAndMerged) {
  for (const int64_t rows : {0, 1, 2, 3, 7, 8}) {
    Feed feed{rows};
    const auto all = all_pages(std::ref(feed), "/x", {"steps", "evals"});
    ASSERT_TRUE(all.ok()) << all.error().text();
    ASSERT_EQ((*all)["steps"].size(), static_cast<size_t>(rows));
    EXPECT_EQ((*all)["evals"].size(), static_cast<size_t>(rows / 3));
    EXPECT_EQ((*all)["next"], rows);
    for (int64_t i = 0; i < rows; ++i) {
      EXPECT_EQ((*all)["steps"][static_cast<size_t>(i)]["step"], i + 1);
    }
    EXPECT_EQ(feed.calls, (rows + 1) / 2 + 1);
  }
}

TEST(Pages, BrokenAnswersEndTheLoop) {
  for (const char* text :
       {R"([])", R"({"next":1})", R"({"lines":{},"next":1})", R"({"lines":[1]})",
        R"({"lines":[1],"next":"1"})", R"({"lines":[1],"next":0})", R"({"lines":[1],"next":-5})"}) {
    const auto all = all_pages([&](const std::string&) { return Result<json>(json::parse(text)); },
                               "/x", {"lines"});
    ASSERT_FALSE(all.ok()) << text;
    EXPECT_EQ(all.error().code, Code::kCorrupt) << text;
  }
}

TEST(Pages, AnErrorOfALaterPageIsTheResult) {
  Feed feed{5};
  const auto get = [&](const std::string& target) -> Result<json> {
    if (feed.calls == 2) return make_error(Code::kUnavailable, "gone");
    return feed(target);
  };
  const auto all = all_pages(get, "/x", {"steps", "evals"});
  ASSERT_FALSE(all.ok());
  EXPECT_EQ(all.error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace weft::cli
