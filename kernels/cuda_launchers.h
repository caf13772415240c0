// What the C++ side of each kernel calls on the CUDA side. No CUDA header is needed to include
// this, and no Abseil header is seen by nvcc.
//
// Every launcher only enqueues on the stream. Arguments were checked before. Results are CUDA error
// codes: 0 is success. A build without CUDA has cuda_absent.cc in place of the .cu files; there
// every call answers kNoCuda.
#ifndef RELIBRA_KERNELS_CUDA_LAUNCHERS_H_
#define RELIBRA_KERNELS_CUDA_LAUNCHERS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/accumulate_element.h"
#include "kernels/dtype.h"
#include "kernels/permute_element.h"

struct CUstream_st;

namespace relibra::cuda {

inline constexpr int kNoCuda = -1;

// 0 when there is a device to run on.
int ProbeDevice();
// "cudaErrorInvalidValue: invalid argument". Also clears the error that CUDA keeps for the calling
// thread, so that it does not surface in somebody else's next check.
struct ErrorText {
  const char* name;
  const char* meaning;
  bool no_gpu;  // no driver, no device, or no CUDA in this build
};
ErrorText DescribeAndClear(int error);

// Both words of an IdReport, device pointers.
struct IdReportWords {
  uint64_t* invalid;
  uint64_t* first_position;
};

struct HistogramArgs {
  const void* ids;  // [tokens, layers, top_k]
  IdType type;
  int64_t tokens;
  int64_t layers;
  int32_t top_k;
  int32_t experts;
  uint32_t* counts;  // [layers, experts]
  IdReportWords report;
};
int LoadHistogram(const HistogramArgs& args, CUstream_st* stream);

struct InstanceMapArgs {
  const void* ids;
  IdType type;
  int32_t choices;  // tokens x top_k
  int32_t top_k;
  int64_t token_stride;
  int32_t experts;
  const int32_t* offsets;
  const int32_t* instance_rank;
  const int32_t* instance_slot;
  const uint32_t* quota;
  int32_t* slot;  // [choices]
  int32_t* rank;  // [choices]
  IdReportWords report;
};
int InstanceMapWorkspace(int32_t choices, int32_t experts, size_t* bytes);
int MapToInstances(const InstanceMapArgs& args, void* workspace, CUstream_st* stream);

struct DestinationOrderArgs {
  const int32_t* destination;  // [choices]
  int32_t choices;
  int32_t destinations;
  int64_t* counts;
  int64_t* offsets;
  int32_t* row_of_choice;
  int32_t* choice_of_row;  // may be null
  IdReportWords report;
};
int DestinationOrderWorkspace(int32_t choices, int32_t destinations, size_t* bytes);
int BuildDestinationOrder(const DestinationOrderArgs& args, void* workspace, CUstream_st* stream);

// word_bytes: 16, 4, 2 or 1; pointers are aligned to it.
int Permute(const PermuteArgs& args, int word_bytes, CUstream_st* stream);
// aligned: LoadGroup and StoreGroup may be used.
int Combine(const CombineArgs& args, bool aligned, CUstream_st* stream);
int CombineBackward(const CombineBackwardArgs& args, bool aligned, CUstream_st* stream);
int Accumulate(const AccumulateArgs& args, bool aligned, CUstream_st* stream);

int Checksum(const uint8_t* data, int64_t bytes, uint64_t* checksum, CUstream_st* stream);

}  // namespace relibra::cuda

#endif  // RELIBRA_KERNELS_CUDA_LAUNCHERS_H_
