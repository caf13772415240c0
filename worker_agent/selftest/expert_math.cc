#include "worker_agent/selftest/expert_math.h"

namespace relibra::agent::selftest {
namespace {

Matrix Sigmoid(const Matrix& x) { return ((-x.array()).exp() + 1).inverse().matrix(); }

}  // namespace

Matrix ExpertForward(const ExpertView& expert, const Matrix& rows) {
  const Eigen::Index inner = expert.w2.cols();
  const Matrix ab = rows * expert.w13.transpose();  // [n, 2 * intermediate]
  const Matrix a = ab.leftCols(inner);
  const Matrix s = (a.array() * Sigmoid(a).array() * ab.rightCols(inner).array()).matrix();
  return s * expert.w2.transpose();
}

Matrix ExpertBackward(const ExpertView& expert, const Matrix& rows, const Matrix& grad_output,
                      MatrixView grad_w13, MatrixView grad_w2) {
  const Eigen::Index inner = expert.w2.cols();
  const Matrix ab = rows * expert.w13.transpose();
  const Matrix a = ab.leftCols(inner);
  const Matrix b = ab.rightCols(inner);
  const Matrix sigmoid = Sigmoid(a);
  const Matrix silu = (a.array() * sigmoid.array()).matrix();
  const Matrix s = (silu.array() * b.array()).matrix();

  const Matrix grad_s = grad_output * expert.w2;
  grad_w2.noalias() += grad_output.transpose() * s;
  Matrix grad_ab(rows.rows(), 2 * inner);
  grad_ab.leftCols(inner) =
      (grad_s.array() * b.array() * sigmoid.array() * (1 + a.array() * (1 - sigmoid.array())))
          .matrix();
  grad_ab.rightCols(inner) = (grad_s.array() * silu.array()).matrix();
  grad_w13.noalias() += grad_ab.transpose() * rows;
  return grad_ab * expert.w13;
}

}  // namespace relibra::agent::selftest
