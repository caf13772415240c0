// The C ABI by which relibra.eplb calls planner_service/core/static_placement.h. Loaded by ctypes
// as librelibra_eplb.so; version it when it changes.
#ifndef RELIBRA_PYTHON_NATIVE_EPLB_H_
#define RELIBRA_PYTHON_NATIVE_EPLB_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The version of this interface; the caller refuses a library with another.
#define RELIBRA_EPLB_ABI_VERSION 1
int32_t relibra_eplb_abi_version(void);

// Places every layer; see StaticPlacer.
// weight: [layers, experts]; physical_to_logical: [layers, physical], out;
// replica_count: [layers, experts], out. All are row-major and the caller's.
// Returns the largest replica count of any expert, or -1 after writing what is wrong, ended by a
// zero byte, into error [error_size]. Threads may call at once.
int64_t relibra_eplb_place(const double* weight, int32_t layers, int32_t experts, int32_t physical,
                           int32_t groups, int32_t nodes, int32_t gpus,
                           int64_t* physical_to_logical, int64_t* replica_count, char* error,
                           size_t error_size);

// Inverts placements: logical_to_physical [layers, experts, most_replicas], out: the slots of each
// expert, ascending, then -1. Ids must be in 0..experts-1 and no expert may be there more often
// than most_replicas, as relibra_eplb_place sees to.
void relibra_eplb_invert(const int64_t* physical_to_logical, int32_t layers, int32_t experts,
                         int32_t physical, int64_t most_replicas, int64_t* logical_to_physical);

#ifdef __cplusplus
}
#endif

#endif  // RELIBRA_PYTHON_NATIVE_EPLB_H_
