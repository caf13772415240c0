#include "planner_service/core/home_budget.h"

#include <cstdint>

namespace relibra {
namespace {

// The best step on from choice `at`: the later choice with the largest gain a move.
struct Step {
  int to = -1;
  double gain_a_move = 0;
  int64_t moves = 0;
};

Step BestStep(const std::vector<HomeChoice>& choices, int at) {
  Step best;
  for (int i = at + 1; i < static_cast<int>(choices.size()); ++i) {
    const int64_t moves = choices[i].moves - choices[at].moves;
    const double gain = static_cast<double>(choices[at].objective - choices[i].objective);
    const double gain_a_move = gain / static_cast<double>(moves > 0 ? moves : 1);
    if (gain_a_move > best.gain_a_move) best = {i, gain_a_move, moves};
  }
  return best;
}

}  // namespace

std::vector<int> SpendMoves(const std::vector<std::vector<HomeChoice>>& layers,
                            const PlanOptions& options) {
  std::vector<int> taken(layers.size());
  std::vector<Step> next(layers.size());
  for (size_t l = 0; l < layers.size(); ++l) next[l] = BestStep(layers[l], 0);
  int64_t spent = 0;
  while (true) {
    int best = -1;
    for (size_t l = 0; l < layers.size(); ++l) {
      if (next[l].to >= 0 && next[l].gain_a_move > options.move_cost &&
          (best < 0 || next[l].gain_a_move > next[best].gain_a_move)) {
        best = static_cast<int>(l);
      }
    }
    if (best < 0) return taken;
    // Stopping at the first step that does not fit keeps a larger budget's moves a superset.
    if (options.max_moves && spent + next[best].moves > *options.max_moves) return taken;
    spent += next[best].moves;
    taken[best] = next[best].to;
    next[best] = BestStep(layers[best], taken[best]);
  }
}

}  // namespace relibra
