// Times the public EPLB, a Python file that the user points at.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_PUBLIC_EPLB_H_
#define RELIBRA_PLANNER_SERVICE_CLI_PUBLIC_EPLB_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner_service/baseline/eplb.h"

namespace relibra::cli {

// Milliseconds of one rebalance_experts call of `eplb_py` (github.com/deepseek-ai/EPLB's eplb.py,
// or a file with the same function) for weights [layers][experts], best of three, in a Python of
// its own: `python3` of the PATH, which must have PyTorch. UNAVAILABLE with the last line that
// Python wrote when it fails.
absl::StatusOr<double> TimePublicEplb(const std::string& eplb_py,
                                      const std::vector<std::vector<float>>& weights,
                                      const EplbShape& shape);

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_PUBLIC_EPLB_H_
