// One expert's forward and backward pass over a batch of rows, in float32.
#ifndef RELIBRA_WORKER_AGENT_SELFTEST_EXPERT_MATH_H_
#define RELIBRA_WORKER_AGENT_SELFTEST_EXPERT_MATH_H_

#include <Eigen/Core>

namespace relibra::agent::selftest {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixView = Eigen::Map<Matrix>;
using ConstMatrixView = Eigen::Map<const Matrix>;

// w13: [2 * intermediate, hidden] (W1 above W3), w2: [hidden, intermediate].
struct ExpertView {
  ConstMatrixView w13;
  ConstMatrixView w2;
};

// rows: [n, hidden] -> [n, hidden].
Matrix ExpertForward(const ExpertView& expert, const Matrix& rows);

// Adds the weights' gradients to grad_w13 and grad_w2; returns the rows' gradient. Computes the
// forward pass again instead of keeping it.
Matrix ExpertBackward(const ExpertView& expert, const Matrix& rows, const Matrix& grad_output,
                      MatrixView grad_w13, MatrixView grad_w2);

}  // namespace relibra::agent::selftest

#endif  // RELIBRA_WORKER_AGENT_SELFTEST_EXPERT_MATH_H_
