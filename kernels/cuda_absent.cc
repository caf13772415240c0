// The CUDA side of a build without CUDA: every call says so.
#include "kernels/cuda_launchers.h"

namespace relibra::cuda {

int ProbeDevice() { return kNoCuda; }
ErrorText DescribeAndClear(int /*error*/) {
  return {"no CUDA", "built without CUDA kernels", true};
}

int LoadHistogram(const HistogramArgs& /*args*/, CUstream_st* /*stream*/) { return kNoCuda; }
int InstanceMapWorkspace(int32_t /*choices*/, int32_t /*experts*/, size_t* /*bytes*/) {
  return kNoCuda;
}
int MapToInstances(const InstanceMapArgs& /*args*/, void* /*workspace*/, CUstream_st* /*stream*/) {
  return kNoCuda;
}
int DestinationOrderWorkspace(int32_t /*choices*/, int32_t /*destinations*/, size_t* /*bytes*/) {
  return kNoCuda;
}
int BuildDestinationOrder(const DestinationOrderArgs& /*args*/, void* /*workspace*/,
                          CUstream_st* /*stream*/) {
  return kNoCuda;
}
int Permute(const PermuteArgs& /*args*/, int /*word_bytes*/, CUstream_st* /*stream*/) {
  return kNoCuda;
}
int Combine(const CombineArgs& /*args*/, bool /*aligned*/, CUstream_st* /*stream*/) {
  return kNoCuda;
}
int CombineBackward(const CombineBackwardArgs& /*args*/, bool /*aligned*/,
                    CUstream_st* /*stream*/) {
  return kNoCuda;
}
int Accumulate(const AccumulateArgs& /*args*/, bool /*aligned*/, CUstream_st* /*stream*/) {
  return kNoCuda;
}
int Checksum(const uint8_t* /*data*/, int64_t /*bytes*/, uint64_t* /*checksum*/,
             CUstream_st* /*stream*/) {
  return kNoCuda;
}

}  // namespace relibra::cuda
