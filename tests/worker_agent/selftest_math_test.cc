// The self-test's own parts: if these are wrong, the comparison proves nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "worker_agent/selftest/comparison.h"
#include "worker_agent/selftest/expert_math.h"
#include "worker_agent/selftest/reference.h"
#include "worker_agent/selftest/scenario.h"

namespace relibra::agent::selftest {
namespace {

double Silu(double x) { return x / (1 + std::exp(-x)); }

TEST(ExpertMath, ForwardIsSwiGlu) {
  // hidden 2, intermediate 1: y = w2 * silu(w1 . x) * (w3 . x).
  const std::vector<float> w13 = {1, 2, 3, -1};
  const std::vector<float> w2 = {0.5, -2};
  const ExpertView expert{{w13.data(), 2, 2}, {w2.data(), 2, 1}};
  Matrix x(1, 2);
  x << 0.3F, 0.2F;
  const Matrix y = ExpertForward(expert, x);
  const double s = Silu(0.7) * 0.7;  // w1 . x = 0.3 + 0.4, w3 . x = 0.9 - 0.2
  EXPECT_NEAR(y(0, 0), 0.5 * s, 1e-6);
  EXPECT_NEAR(y(0, 1), -2 * s, 1e-6);
}

TEST(ExpertMath, GradientsAreThoseOfFiniteDifferences) {
  std::srand(3);
  Matrix w13 = Matrix::Random(6, 4);
  Matrix w2 = Matrix::Random(4, 3);
  Matrix x = Matrix::Random(5, 4);
  const Matrix grad_y = Matrix::Random(5, 4);
  const auto loss = [&] {
    const ExpertView expert{{w13.data(), 6, 4}, {w2.data(), 4, 3}};
    return (ExpertForward(expert, x).array() * grad_y.array()).cast<double>().sum();
  };
  Matrix grad_w13 = Matrix::Zero(6, 4);
  Matrix grad_w2 = Matrix::Zero(4, 3);
  const ExpertView expert{{w13.data(), 6, 4}, {w2.data(), 4, 3}};
  const Matrix grad_x = ExpertBackward(expert, x, grad_y, MatrixView(grad_w13.data(), 6, 4),
                                       MatrixView(grad_w2.data(), 4, 3));
  const auto check = [&](Matrix& parameter, const Matrix& gradient) {
    for (Eigen::Index i = 0; i < parameter.size(); ++i) {
      const float value = parameter.data()[i];
      parameter.data()[i] = value + 1e-2F;
      const double above = loss();
      parameter.data()[i] = value - 1e-2F;
      const double below = loss();
      parameter.data()[i] = value;
      EXPECT_NEAR(gradient.data()[i], (above - below) / 2e-2, 2e-3);
    }
  };
  check(w13, grad_w13);
  check(w2, grad_w2);
  check(x, grad_x);
}

// The reference's gradient of a weight against the change of the loss when the weight changes: the
// momentum of the first step is the gradient, and the loss is computed from outputs alone.
TEST(Reference, GradientsAreThoseOfFiniteDifferencesOfTheLoss) {
  const Scenario scenario{.nodes = 1,
                          .gpus_per_node = 1,
                          .replica_slots = 0,
                          .layers = 2,
                          .experts = 3,
                          .top_k = 2,
                          .hidden = 4,
                          .intermediate = 3,
                          .micro_batches = 2,
                          .sequences = 1,
                          .sequence_tokens = 5};
  const auto loss = [&](const Reference& reference) {
    double sum = 0;
    for (int m = 0; m < scenario.micro_batches; ++m) {
      const std::vector<float> targets = Targets(scenario, 0, m, 0);
      for (size_t i = 0; i < targets.size(); ++i) {
        sum += std::pow(reference.Output(m, 0)[i] - targets[i], 2) / 2;
      }
    }
    return sum / (scenario.tokens() * scenario.micro_batches);
  };
  Reference plain(scenario);
  plain.Train(0);
  for (int l = 0; l < 2; ++l) {
    for (int e = 0; e < 3; ++e) {
      for (const size_t i : {size_t{0}, size_t{7}}) {
        const auto nudged = [&](double by) {
          Reference reference(scenario);
          reference.NudgeForTest(l, e, i, by);
          reference.Train(0);
          return loss(reference);
        };
        EXPECT_NEAR(plain.At(l, e).g13[i], (nudged(1e-5) - nudged(-1e-5)) / 2e-5, 1e-8);
      }
    }
  }
}

TEST(Scenario, RoutesAreDistinctIdsOfTheRange) {
  const Scenario scenario;
  const std::vector<int32_t> routes = Routes(scenario, 0, 0, 3);
  ASSERT_EQ(routes.size(), size_t(scenario.tokens() * scenario.layers * scenario.top_k));
  for (size_t row = 0; row < routes.size(); row += scenario.top_k) {
    for (int k = 0; k < scenario.top_k; ++k) {
      EXPECT_GE(routes[row + k], 0);
      EXPECT_LT(routes[row + k], scenario.experts);
      for (int j = 0; j < k; ++j) EXPECT_NE(routes[row + k], routes[row + j]);
    }
  }
}

TEST(Scenario, AnotherSeedOrStepIsAnotherRunAndTheSameIsTheSame) {
  Scenario scenario;
  EXPECT_EQ(Routes(scenario, 1, 0, 0), Routes(scenario, 1, 0, 0));
  EXPECT_NE(Routes(scenario, 1, 0, 0), Routes(scenario, 2, 0, 0));
  const std::vector<int32_t> before = Routes(scenario, 1, 0, 0);
  scenario.seed = 2;
  EXPECT_NE(Routes(scenario, 1, 0, 0), before);
}

TEST(Comparison, ImbalanceIsMaxOverMeanAveraged) {
  // (4, 2, 3, 3) -> 4 / 3; no tokens -> 1.
  EXPECT_DOUBLE_EQ(Imbalance({4, 2, 3, 3, 0, 0, 0, 0}, 4), (4.0 / 3 + 1) / 2);
}

}  // namespace
}  // namespace relibra::agent::selftest
