#include "planner_service/baseline/even_homes.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace relibra {
namespace {

using ::testing::ElementsAre;

TEST(EvenHomesTest, KeepsAnExpertWhereItIsWhenACopyIsThere) {
  const std::vector<std::vector<int32_t>> holders = {{0, 1}, {0, 1}, {1}, {0, 1}};
  EXPECT_THAT(ChooseHomes(holders, {1, 0, 1, 0}, 2, 2), ElementsAre(1, 0, 1, 0));
}

// Experts 0 and 1 stay on rank 0 at first; expert 2 is on rank 0 only, so one of them must give
// way.
TEST(EvenHomesTest, MovesAnExpertOnlyToMakeRoomForOneThatHasNoOtherPlace) {
  const std::vector<std::vector<int32_t>> holders = {{0}, {0, 1}, {0}, {1}};
  EXPECT_THAT(ChooseHomes(holders, {0, 0, 1, 1}, 2, 2), ElementsAre(0, 1, 0, 1));
}

TEST(EvenHomesTest, SaysWhichExpertFindsNoRoom) {
  const std::vector<std::vector<int32_t>> holders = {{0}, {0}, {0}, {1}};
  EXPECT_THAT(ChooseHomes(holders, {0, 0, 1, 1}, 2, 2), ElementsAre(0, 0, -1, 1));
}

// The most experts that can be placed, by trying every choice.
int MostPlaced(const std::vector<std::vector<int32_t>>& holders, std::vector<int>& room, size_t e) {
  if (e == holders.size()) return 0;
  int most = MostPlaced(holders, room, e + 1);
  for (int rank : holders[e]) {
    if (room[rank] == 0) continue;
    --room[rank];
    most = std::max(most, 1 + MostPlaced(holders, room, e + 1));
    ++room[rank];
  }
  return most;
}

TEST(EvenHomesTest, PlacesAsManyExpertsAsExhaustionDoes) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 4);
    const int capacity = 1 + static_cast<int>(random() % 2);
    std::vector<std::vector<int32_t>> holders(ranks * capacity);
    std::vector<int32_t> current;
    for (std::vector<int32_t>& of_expert : holders) {
      for (int r = 0; r < ranks; ++r) {
        if (random() % 3 == 0) of_expert.push_back(r);
      }
      if (of_expert.empty()) of_expert.push_back(static_cast<int32_t>(random() % ranks));
      current.push_back(static_cast<int32_t>(random() % ranks));
    }
    const std::vector<int32_t> homes = ChooseHomes(holders, current, ranks, capacity);
    std::vector<int> at_home(ranks);
    int placed = 0;
    for (size_t e = 0; e < homes.size(); ++e) {
      if (homes[e] < 0) continue;
      ++placed;
      EXPECT_LE(++at_home[homes[e]], capacity);
      EXPECT_TRUE(std::count(holders[e].begin(), holders[e].end(), homes[e])) << "expert " << e;
    }
    std::vector<int> room(ranks, capacity);
    EXPECT_EQ(placed, MostPlaced(holders, room, 0));
  }
}

}  // namespace
}  // namespace relibra
