#include "planner_service/core/home_budget.h"

#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

using ::testing::ElementsAre;

using Choices = std::vector<HomeChoice>;

HomeChoice Choice(int64_t moves, int64_t objective) { return {{}, moves, objective}; }

PlanOptions With(std::optional<int64_t> max_moves, double move_cost = 0) {
  PlanOptions options;
  options.max_moves = max_moves;
  options.move_cost = move_cost;
  return options;
}

// Layer 0 gains 50 with 2 moves and 60 with 6 (25, then 2.5 a move); layer 1 gains 40 with 4 (10 a
// move).
const std::vector<Choices> kLayers = {{Choice(0, 100), Choice(2, 50), Choice(6, 40)},
                                      {Choice(0, 100), Choice(4, 60)}};

TEST(HomeBudgetTest, FreeMovesTakeTheBestOfEveryLayer) {
  EXPECT_THAT(SpendMoves(kLayers, With({})), ElementsAre(2, 1));
}

TEST(HomeBudgetTest, TheMovesThatGainMostAMoveComeFirst) {
  EXPECT_THAT(SpendMoves(kLayers, With(0)), ElementsAre(0, 0));
  EXPECT_THAT(SpendMoves(kLayers, With(1)), ElementsAre(0, 0));
  EXPECT_THAT(SpendMoves(kLayers, With(2)), ElementsAre(1, 0));
  EXPECT_THAT(SpendMoves(kLayers, With(5)), ElementsAre(1, 0));
  EXPECT_THAT(SpendMoves(kLayers, With(6)), ElementsAre(1, 1));
  EXPECT_THAT(SpendMoves(kLayers, With(9)), ElementsAre(1, 1));
  EXPECT_THAT(SpendMoves(kLayers, With(10)), ElementsAre(2, 1));
}

TEST(HomeBudgetTest, AMoveMustGainMoreThanItCosts) {
  EXPECT_THAT(SpendMoves(kLayers, With({}, 2.4)), ElementsAre(2, 1));
  EXPECT_THAT(SpendMoves(kLayers, With({}, 2.5)), ElementsAre(1, 1));
  EXPECT_THAT(SpendMoves(kLayers, With({}, 10)), ElementsAre(1, 0));
  EXPECT_THAT(SpendMoves(kLayers, With({}, 25)), ElementsAre(0, 0));
}

TEST(HomeBudgetTest, AChoiceThatIsBetterWithoutMoreMovesIsTaken) {
  EXPECT_THAT(SpendMoves({{Choice(0, 9), Choice(0, 8)}}, With(0)), ElementsAre(1));
}

TEST(HomeBudgetTest, LargerBudgetsTakeTheSameMovesAndMoreAndStayWithinThem) {
  Draw draw(21);
  for (int i = 0; i < 500; ++i) {
    std::vector<Choices> layers(draw.Between(1, 5));
    for (Choices& choices : layers) {
      HomeChoice at = Choice(0, 1000);
      for (int c = draw.Between(1, 8); c > 0; --c) {
        choices.push_back(at);
        at.moves += draw.Between(1, 6);
        at.objective -= draw.Between(1, 60);
      }
    }
    const double cost = draw.OneIn(2) ? 0 : draw.Between(0, 12);
    std::vector<int> fewer(layers.size());
    for (int budget = 0; budget < 60; ++budget) {
      const std::vector<int> taken = SpendMoves(layers, With(budget, cost));
      int64_t spent = 0;
      for (size_t l = 0; l < layers.size(); ++l) {
        EXPECT_GE(taken[l], fewer[l]);
        spent += layers[l][taken[l]].moves;
      }
      EXPECT_LE(spent, budget);
      fewer = taken;
    }
  }
}

}  // namespace
}  // namespace relibra
