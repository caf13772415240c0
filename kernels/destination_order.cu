#include "kernels/cuda_launch.h"
#include "kernels/routing_element.h"
#include "kernels/sort_choices.h"

namespace relibra::cuda {
namespace {

// Key of a choice: its destination, or `destinations` when it has none, so that those come last.
__global__ void __launch_bounds__(kBlockThreads)
    DestinationKeysKernel(const DestinationOrderArgs args, uint32_t* keys, int32_t* positions) {
  const int64_t choice = ThreadItem();
  if (choice >= args.choices) return;
  const int64_t destination = ClassifyId(args.destination[choice], args.destinations);
  if (destination == kInvalidId) ReportInvalid(args.report, choice);
  keys[choice] = static_cast<uint32_t>(destination >= 0 ? destination : args.destinations);
  positions[choice] = static_cast<int32_t>(choice);
}

__global__ void __launch_bounds__(kBlockThreads)
    CountDestinationsKernel(const DestinationOrderArgs args, const uint32_t* sorted_keys) {
  const int64_t destination = ThreadItem();
  if (destination > args.destinations) return;
  const auto key = static_cast<uint32_t>(destination);
  const int32_t begin = LowerBound(sorted_keys, args.choices, key);
  args.offsets[destination] = begin;
  if (destination < args.destinations) {
    args.counts[destination] = LowerBound(sorted_keys, args.choices, key + 1) - begin;
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    NumberRowsKernel(const DestinationOrderArgs args, const uint32_t* sorted_keys,
                     const int32_t* sorted_positions) {
  const int64_t row = ThreadItem();
  if (row >= args.choices) return;
  const int32_t choice = sorted_positions[row];
  const bool routed = sorted_keys[row] < static_cast<uint32_t>(args.destinations);
  args.row_of_choice[choice] = routed ? static_cast<int32_t>(row) : -1;
  if (args.choice_of_row != nullptr) args.choice_of_row[row] = routed ? choice : -1;
}

}  // namespace

int DestinationOrderWorkspace(int32_t choices, int32_t destinations, size_t* bytes) {
  ChoiceSort sort;
  const cudaError_t error = ChoiceSort::Plan(choices, destinations, nullptr, &sort);
  *bytes = sort.bytes();
  return error;
}

int BuildDestinationOrder(const DestinationOrderArgs& args, void* workspace, CUstream_st* stream) {
  cudaError_t error = ClearReport(args.report, stream);
  if (error != cudaSuccess) return error;
  ChoiceSort sort;
  error = ChoiceSort::Plan(args.choices, args.destinations, workspace, &sort);
  if (error != cudaSuccess) return error;
  if (args.choices > 0) {
    error = LaunchOverItems(DestinationKeysKernel, args.choices, stream, args, sort.keys(),
                            sort.positions());
    if (error != cudaSuccess) return error;
    error = sort.Run(stream);
    if (error != cudaSuccess) return error;
  }
  // Also without choices: counts and offsets are written then, all zero.
  error = LaunchOverItems(CountDestinationsKernel, int64_t{args.destinations} + 1, stream, args,
                          sort.sorted_keys());
  if (error != cudaSuccess) return error;
  return LaunchOverItems(NumberRowsKernel, args.choices, stream, args, sort.sorted_keys(),
                         sort.sorted_positions());
}

}  // namespace relibra::cuda
