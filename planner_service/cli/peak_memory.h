// How much memory this process needed at most.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_PEAK_MEMORY_H_
#define RELIBRA_PLANNER_SERVICE_CLI_PEAK_MEMORY_H_

#include <cstdint>

namespace relibra::cli {

// Gives memory that is not in use back to the system, and forgets the peak so far, where the system
// lets a process do so (Linux).
void ResetPeakMemory();

// Most bytes resident since the process began, or since ResetPeakMemory. 0 where not known.
int64_t PeakMemoryBytes();

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_PEAK_MEMORY_H_
