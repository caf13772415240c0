#include "kernels/cuda_launch.h"
#include "kernels/routing_element.h"
#include "kernels/sort_choices.h"

namespace relibra::cuda {
namespace {

// Key of a choice: its expert, or `experts` when it has none.
__global__ void __launch_bounds__(kBlockThreads)
    ExpertKeysKernel(const InstanceMapArgs args, uint32_t* keys, int32_t* positions) {
  const int64_t item = ThreadItem();
  if (item >= args.choices) return;
  const int32_t choice = static_cast<int32_t>(item);
  const int64_t index = choice / args.top_k * args.token_stride + choice % args.top_k;
  const int64_t expert = ClassifyId(LoadId(args.ids, args.type, index), args.experts);
  if (expert == kInvalidId) ReportInvalid(args.report, choice);
  keys[choice] = static_cast<uint32_t>(expert >= 0 ? expert : args.experts);
  positions[choice] = choice;
}

// first[e]: where expert e's choices begin in the sorted array; first[experts] is their number.
__global__ void __launch_bounds__(kBlockThreads)
    FirstChoiceKernel(const uint32_t* sorted_keys, int32_t choices, int32_t experts,
                      int32_t* first) {
  const int64_t expert = ThreadItem();
  if (expert > experts) return;
  first[expert] = LowerBound(sorted_keys, choices, static_cast<uint32_t>(expert));
}

__global__ void __launch_bounds__(kBlockThreads)
    AssignInstancesKernel(const InstanceMapArgs args, const uint32_t* sorted_keys,
                          const int32_t* sorted_positions, const int32_t* first) {
  const int64_t item = ThreadItem();
  if (item >= args.choices) return;
  const int32_t i = static_cast<int32_t>(item);
  const int32_t choice = sorted_positions[i];
  const int32_t expert = static_cast<int32_t>(sorted_keys[i]);
  int32_t slot = -1;
  int32_t rank = -1;
  if (expert < args.experts) {
    const int32_t begin = first[expert];
    const int32_t home = args.offsets[expert];
    const int32_t instance =
        home + InstanceOfOccurrence(static_cast<uint32_t>(i - begin),
                                    static_cast<uint32_t>(first[expert + 1] - begin),
                                    args.quota + home, args.offsets[expert + 1] - home);
    slot = args.instance_slot[instance];
    rank = args.instance_rank[instance];
  }
  args.slot[choice] = slot;
  args.rank[choice] = rank;
}

size_t FirstBytes(int32_t experts) {
  return RoundToPiece((static_cast<size_t>(experts) + 1) * sizeof(int32_t));
}

}  // namespace

int InstanceMapWorkspace(int32_t choices, int32_t experts, size_t* bytes) {
  ChoiceSort sort;
  const cudaError_t error = ChoiceSort::Plan(choices, experts, nullptr, &sort);
  *bytes = FirstBytes(experts) + sort.bytes();
  return error;
}

int MapToInstances(const InstanceMapArgs& args, void* workspace, CUstream_st* stream) {
  cudaError_t error = ClearReport(args.report, stream);
  if (error != cudaSuccess || args.choices == 0) return error;
  auto* first = static_cast<int32_t*>(workspace);
  ChoiceSort sort;
  error = ChoiceSort::Plan(args.choices, args.experts,
                           static_cast<char*>(workspace) + FirstBytes(args.experts), &sort);
  if (error != cudaSuccess) return error;
  error =
      LaunchOverItems(ExpertKeysKernel, args.choices, stream, args, sort.keys(), sort.positions());
  if (error != cudaSuccess) return error;
  error = sort.Run(stream);
  if (error != cudaSuccess) return error;
  error = LaunchOverItems(FirstChoiceKernel, int64_t{args.experts} + 1, stream, sort.sorted_keys(),
                          args.choices, args.experts, first);
  if (error != cudaSuccess) return error;
  return LaunchOverItems(AssignInstancesKernel, args.choices, stream, args, sort.sorted_keys(),
                         sort.sorted_positions(), first);
}

}  // namespace relibra::cuda
