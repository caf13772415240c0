#include "kernels/executor.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <vector>

#include "kernels/accumulate.h"
#include "kernels/checksum.h"
#include "kernels/destination_order.h"
#include "kernels/id_report.h"
#include "kernels/instance_map.h"
#include "kernels/load_histogram.h"
#include "kernels/permute.h"

namespace relibra::kernel_test {
namespace {

using testing::HasSubstr;

void ExpectNoGpu(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no GPU: "));
}

TEST(ExecutorTest, AlwaysRunsOnTheCpu) { EXPECT_TRUE(CheckDevice(Device::kCpu).ok()); }

TEST(ExecutorTest, EveryCallSaysThatThereIsNoGpu) {
  if (CheckDevice(Device::kCuda).ok()) GTEST_SKIP() << "skipped: there is a GPU";
  const Executor cuda = Executor::Cuda(nullptr);
  alignas(256) std::vector<int64_t> memory(512);
  auto* ints = reinterpret_cast<int32_t*>(memory.data());
  auto* floats = reinterpret_cast<float*>(memory.data());
  auto* counts = reinterpret_cast<uint32_t*>(memory.data());
  auto* checksum = reinterpret_cast<uint64_t*>(memory.data());
  IdReport report;
  ExpectNoGpu(CheckDevice(Device::kCuda));
  ExpectNoGpu(LoadHistogram(cuda, {.data = ints, .tokens = 2}, 4, counts, &report));
  ExpectNoGpu(MapToInstancesWorkspaceBytes(Device::kCuda, 10, 4).status());
  ExpectNoGpu(
      MapToInstances(cuda, {.data = ints, .tokens = 2},
                     {.experts = 1, .offsets = ints, .rank = ints, .slot = ints, .quota = counts},
                     ints, ints, &report, {}));
  ExpectNoGpu(BuildDestinationOrderWorkspaceBytes(Device::kCuda, 10, 4).status());
  ExpectNoGpu(BuildDestinationOrder(
      cuda, ints, 2, 2, {.counts = memory.data(), .offsets = memory.data(), .row_of_choice = ints},
      &report, {}));
  const RowMap map = {.row_of_choice = ints, .tokens = 1, .top_k = 1, .hidden = 8};
  ExpectNoGpu(Permute(cuda, map, {.data = memory.data()}, {.data = memory.data()}));
  ExpectNoGpu(Combine(cuda, map, {.data = memory.data()}, nullptr, {.data = memory.data()}));
  ExpectNoGpu(CombineBackward(cuda, map, {.data = memory.data()}, {.data = memory.data()}, nullptr,
                              {.data = memory.data()}, floats));
  const std::vector<const void*> replicas = {floats + 64};
  ExpectNoGpu(AccumulateGradients(cuda, floats, replicas, FloatType::kFp32, 8));
  ExpectNoGpu(Checksum(cuda, memory.data(), 64, checksum));
}

TEST(IdReportTest, NamesTheIndexInTheArraysShape) {
  // 2 * (3 * 4) + 1 * 4 + 3 = 31.
  EXPECT_TRUE(CheckIds({}, "ids", {3, 4}, 8).ok());
  const absl::Status status =
      CheckIds({.invalid = 5, .first_position = 31}, "routed_experts", {3, 4}, 8);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "routed_experts[2][1][3] is not below 8 (5 such ids, all left out)");
  EXPECT_EQ(CheckIds({.invalid = 1, .first_position = 7}, "destination", {}, 2).message(),
            "destination[7] is not below 2 (1 such ids, all left out)");
}

}  // namespace
}  // namespace relibra::kernel_test
