#include "planner_service/cli/skew.h"

#include <string>

#include "gtest/gtest.h"

namespace relibra::cli {
namespace {

TEST(SkewTest, KnowsItsNamesAndThreeNumbers) {
  const auto harsh = ParseSkew("harsh");
  ASSERT_TRUE(harsh.ok());
  EXPECT_EQ(harsh->layer, 1.0);
  EXPECT_EQ(harsh->domain, 0.8);
  EXPECT_EQ(harsh->sequence, 0.5);
  const auto mild = ParseSkew("mild");
  ASSERT_TRUE(mild.ok());
  EXPECT_EQ(mild->layer, 0.6);
  EXPECT_EQ(mild->sequence, 0.3);
  const auto own = ParseSkew("0.25/0/2");
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(own->layer, 0.25);
  EXPECT_EQ(own->domain, 0);
  EXPECT_EQ(own->sequence, 2);
}

TEST(SkewTest, RefusesOtherWords) {
  for (const char* words : {"", "hard", "1/2", "1/2/3/4", "a/b/c", "1//2"}) {
    EXPECT_EQ(ParseSkew(words).status().code(), absl::StatusCode::kInvalidArgument) << words;
  }
}

}  // namespace
}  // namespace relibra::cli
