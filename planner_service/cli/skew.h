// How skewed synthetic routing is, as words.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_SKEW_H_
#define RELIBRA_PLANNER_SERVICE_CLI_SKEW_H_

#include <string>

#include "absl/status/statusor.h"
#include "planner_service/trace/generator.h"

namespace relibra::cli {

// Lognormal sigmas of the generator's kRl family.
struct Skew {
  double layer = 1.0;
  double domain = 0.8;
  double sequence = 0.5;

  void ApplyTo(GeneratorOptions& options) const {
    options.layer_sigma = layer;
    options.domain_sigma = domain;
    options.sequence_sigma = sequence;
  }
};

// "harsh" (1.0/0.8/0.5), "mild" (0.6/0.5/0.3), or three numbers "a/b/c". INVALID_ARGUMENT
// otherwise.
absl::StatusOr<Skew> ParseSkew(const std::string& words);

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_SKEW_H_
