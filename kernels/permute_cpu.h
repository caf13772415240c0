// The CPU side of permute.h; arguments were checked before.
#ifndef RELIBRA_KERNELS_PERMUTE_CPU_H_
#define RELIBRA_KERNELS_PERMUTE_CPU_H_

#include "kernels/permute_element.h"

namespace relibra {

// word_bytes: 16, 4, 2 or 1.
void PermuteOnCpu(const PermuteArgs& args, int word_bytes);
// aligned: groups may be loaded and stored as a whole.
void CombineOnCpu(const CombineArgs& args, bool aligned);
void CombineBackwardOnCpu(const CombineBackwardArgs& args, bool aligned);

}  // namespace relibra

#endif  // RELIBRA_KERNELS_PERMUTE_CPU_H_
