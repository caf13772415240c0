// Times each kernel on a GPU by CUDA events and sets the bytes it must move per second beside the
// bandwidth of a device-to-device copy measured in the same run.
//
//   kernels_gpu_benchmark [tokens=16384] [hidden=4096] [top_k=8]
//
// Prints a table. Status 77 and a line "no GPU: …" where there is none; 1 when anything fails.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/accumulate.h"
#include "kernels/checksum.h"
#include "kernels/destination_order.h"
#include "kernels/instance_map.h"
#include "kernels/load_histogram.h"
#include "kernels/permute.h"

namespace relibra {
namespace {

constexpr int kNoGpu = 77;
constexpr int kWarmUps = 5;
constexpr int kRuns = 30;

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "CUDA: %s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
  exit(1);
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  fprintf(stderr, "%s\n", status.ToString().c_str());
  exit(1);
}

template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(int64_t count) : bytes_(static_cast<size_t>(count) * sizeof(T)) {
    Check(cudaMalloc(&memory_, bytes_));
    Check(cudaMemset(memory_, 0, bytes_));
  }
  explicit DeviceBuffer(const std::vector<T>& values)
      : DeviceBuffer(static_cast<int64_t>(values.size())) {
    Check(cudaMemcpy(memory_, values.data(), bytes_, cudaMemcpyHostToDevice));
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { Check(cudaFree(memory_)); }
  T* data() { return static_cast<T*>(memory_); }
  size_t bytes() const { return bytes_; }

 private:
  void* memory_ = nullptr;
  size_t bytes_;
};

class Stopwatch {
 public:
  Stopwatch() {
    Check(cudaStreamCreate(&stream_));
    Check(cudaEventCreate(&begin_));
    Check(cudaEventCreate(&end_));
  }
  cudaStream_t stream() const { return stream_; }

  // Median seconds of one call.
  double Time(const std::function<void()>& call) {
    for (int i = 0; i < kWarmUps; ++i) call();
    std::vector<float> milliseconds(kRuns);
    for (float& time : milliseconds) {
      Check(cudaEventRecord(begin_, stream_));
      call();
      Check(cudaEventRecord(end_, stream_));
      Check(cudaEventSynchronize(end_));
      Check(cudaEventElapsedTime(&time, begin_, end_));
    }
    std::nth_element(milliseconds.begin(), milliseconds.begin() + kRuns / 2, milliseconds.end());
    return milliseconds[kRuns / 2] / 1e3;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

struct Sizes {
  int64_t tokens = 16384;
  int64_t hidden = 4096;
  int64_t top_k = 8;
  int64_t choices() const { return tokens * top_k; }
};

class Table {
 public:
  explicit Table(double copy_bytes_per_second) : copy_(copy_bytes_per_second) {
    printf("| kernel | bytes | microseconds | GB/s | of copy |\n|---|---|---|---|---|\n");
  }
  void Row(const std::string& kernel, int64_t bytes, double seconds) const {
    const double rate = static_cast<double>(bytes) / seconds;
    printf("| %s | %lld | %.1f | %.0f | %.2f |\n", kernel.c_str(), static_cast<long long>(bytes),
           seconds * 1e6, rate / 1e9, rate / copy_);
    fflush(stdout);
  }

 private:
  double copy_;
};

std::vector<int32_t> RandomIds(int64_t count, int32_t limit) {
  std::mt19937 random(1);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(limit));
  return ids;
}

double CopyBandwidth(Stopwatch& watch, int64_t bytes) {
  DeviceBuffer<uint8_t> from(bytes);
  DeviceBuffer<uint8_t> to(bytes);
  const double seconds = watch.Time([&] {
    Check(cudaMemcpyAsync(to.data(), from.data(), from.bytes(), cudaMemcpyDeviceToDevice,
                          watch.stream()));
  });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

void TimeRouting(Stopwatch& watch, const Sizes& sizes, const Table& table) {
  constexpr int64_t kLayers = 48;
  constexpr int32_t kExperts = 128;
  const Executor executor = Executor::Cuda(watch.stream());
  DeviceBuffer<IdReport> report(1);
  {
    const std::vector<int32_t> wide = RandomIds(sizes.choices() * kLayers, kExperts);
    DeviceBuffer<uint8_t> ids(std::vector<uint8_t>(wide.begin(), wide.end()));
    DeviceBuffer<uint32_t> counts(kLayers * kExperts);
    table.Row("load histogram, u8, 48 layers", static_cast<int64_t>(ids.bytes() + counts.bytes()),
              watch.Time([&] {
                Check(LoadHistogram(executor,
                                    {.data = ids.data(),
                                     .type = IdType::kU8,
                                     .tokens = sizes.tokens,
                                     .layers = kLayers,
                                     .top_k = sizes.top_k},
                                    kExperts, counts.data(), report.data()));
              }));
  }
  DeviceBuffer<int32_t> ids(RandomIds(sizes.choices(), kExperts));
  std::vector<int32_t> offsets(kExperts + 1);
  std::vector<int32_t> instance(2 * kExperts);
  for (int32_t e = 0; e <= kExperts; ++e) offsets[static_cast<size_t>(e)] = 2 * e;
  for (int32_t i = 0; i < 2 * kExperts; ++i) instance[static_cast<size_t>(i)] = i % 8;
  DeviceBuffer<int32_t> device_offsets(offsets);
  DeviceBuffer<int32_t> device_instance(instance);
  DeviceBuffer<uint32_t> quota(std::vector<uint32_t>(2 * kExperts, 100));
  DeviceBuffer<int32_t> slot(sizes.choices());
  DeviceBuffer<int32_t> rank(sizes.choices());
  const size_t bytes =
      std::max(MapToInstancesWorkspaceBytes(Device::kCuda, sizes.choices(), kExperts).value(),
               BuildDestinationOrderWorkspaceBytes(Device::kCuda, sizes.choices(), 8).value());
  DeviceBuffer<uint8_t> memory(static_cast<int64_t>(bytes));
  const Workspace workspace = {memory.data(), memory.bytes()};
  table.Row("logical to physical", sizes.choices() * 12, watch.Time([&] {
    Check(MapToInstances(executor,
                         {.data = ids.data(), .tokens = sizes.tokens, .top_k = sizes.top_k},
                         {.experts = kExperts,
                          .offsets = device_offsets.data(),
                          .rank = device_instance.data(),
                          .slot = device_instance.data(),
                          .quota = quota.data()},
                         slot.data(), rank.data(), report.data(), workspace));
  }));
  DeviceBuffer<int64_t> counts(8);
  DeviceBuffer<int64_t> starts(9);
  table.Row("destination order", sizes.choices() * 12, watch.Time([&] {
    Check(BuildDestinationOrder(executor, rank.data(), sizes.choices(), 8,
                                {.counts = counts.data(),
                                 .offsets = starts.data(),
                                 .row_of_choice = slot.data(),
                                 .choice_of_row = ids.data()},
                                report.data(), workspace));
  }));
}

void TimeRows(Stopwatch& watch, const Sizes& sizes, const Table& table) {
  const Executor executor = Executor::Cuda(watch.stream());
  // Rows in the order of 8 destinations, as a dispatch to 8 ranks has them.
  const std::vector<int32_t> destination = RandomIds(sizes.choices(), 8);
  std::vector<int32_t> rows(destination.size());
  std::vector<int64_t> counts(8);
  std::vector<int64_t> offsets(9);
  alignas(256) int32_t scratch[64];
  IdReport report;
  Check(BuildDestinationOrder(
      Executor::Cpu(), destination.data(), sizes.choices(), 8,
      {.counts = counts.data(), .offsets = offsets.data(), .row_of_choice = rows.data()}, &report,
      {scratch, sizeof(scratch)}));
  DeviceBuffer<int32_t> row_of_choice(rows);
  const RowMap map = {.row_of_choice = row_of_choice.data(),
                      .tokens = sizes.tokens,
                      .top_k = sizes.top_k,
                      .hidden = sizes.hidden};
  const int64_t token_elements = sizes.tokens * sizes.hidden;
  const int64_t row_elements = sizes.choices() * sizes.hidden;
  DeviceBuffer<uint16_t> tokens(token_elements);
  DeviceBuffer<uint16_t> expert_rows(row_elements);
  DeviceBuffer<uint16_t> grad_rows(row_elements);
  DeviceBuffer<float> weights(std::vector<float>(rows.size(), 0.125f));
  DeviceBuffer<float> grad_weights(sizes.choices());
  const int64_t map_bytes = sizes.choices() * 4;
  table.Row("permute, bf16", 2 * (token_elements + row_elements) + map_bytes, watch.Time([&] {
    Check(Permute(executor, map, {.data = tokens.data()}, {.data = expert_rows.data()}));
  }));
  table.Row("combine, bf16", 2 * (token_elements + row_elements) + 2 * map_bytes, watch.Time([&] {
    Check(Combine(executor, map, {.data = expert_rows.data()}, weights.data(),
                  {.data = tokens.data()}));
  }));
  table.Row("combine without weights, bf16", 2 * (token_elements + row_elements) + map_bytes,
            watch.Time([&] {
              Check(Combine(executor, map, {.data = expert_rows.data()}, nullptr,
                            {.data = tokens.data()}));
            }));
  table.Row(
      "combine backward, bf16", 2 * (token_elements + 2 * row_elements) + 3 * map_bytes,
      watch.Time([&] {
        Check(CombineBackward(executor, map, {.data = tokens.data()}, {.data = expert_rows.data()},
                              weights.data(), {.data = grad_rows.data()}, grad_weights.data()));
      }));
  const int64_t blocks = (sizes.hidden + 127) / 128;
  DeviceBuffer<float> scales(sizes.tokens * blocks);
  DeviceBuffer<float> row_scales(sizes.choices() * blocks);
  table.Row(
      "permute, fp8 with scales",
      (token_elements + row_elements) + 4 * blocks * (sizes.tokens + sizes.choices()) +
          2 * map_bytes,
      watch.Time([&] {
        Check(Permute(executor, map,
                      {.data = tokens.data(), .type = FloatType::kFp8E4m3, .scales = scales.data()},
                      {.data = expert_rows.data(),
                       .type = FloatType::kFp8E4m3,
                       .scales = row_scales.data()}));
      }));
}

void TimeBuffers(Stopwatch& watch, const Table& table) {
  constexpr int64_t kCount = int64_t{1} << 28;
  const Executor executor = Executor::Cuda(watch.stream());
  DeviceBuffer<float> home(kCount);
  DeviceBuffer<float> replica(kCount);
  const void* const replicas[] = {replica.data()};
  table.Row("accumulate, bf16 into fp32", 10 * kCount, watch.Time([&] {
    Check(AccumulateGradients(executor, home.data(), replicas, FloatType::kBf16, kCount));
  }));
  table.Row("accumulate, fp32 into fp32", 12 * kCount, watch.Time([&] {
    Check(AccumulateGradients(executor, home.data(), replicas, FloatType::kFp32, kCount));
  }));
  DeviceBuffer<uint64_t> checksum(1);
  table.Row("checksum", 4 * kCount, watch.Time([&] {
    Check(Checksum(executor, home.data(), 4 * kCount, checksum.data()));
  }));
}

int Main(int argc, char** argv) {
  Sizes sizes;
  int64_t* const fields[] = {&sizes.tokens, &sizes.hidden, &sizes.top_k};
  for (int i = 1; i < argc; ++i) {
    char* end = nullptr;
    const long long value = strtoll(argv[i], &end, 10);
    if (i > 3 || *end != '\0' || value < 1) {
      fprintf(stderr, "usage: %s [tokens=16384] [hidden=4096] [top_k=8]\n", argv[0]);
      return 2;
    }
    *fields[i - 1] = value;
  }
  const absl::Status device = CheckDevice(Device::kCuda);
  if (absl::IsUnavailable(device)) {
    printf("%s\n", std::string(device.message()).c_str());
    return kNoGpu;
  }
  Check(device);
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0));
  Stopwatch watch;
  const double copy = CopyBandwidth(watch, int64_t{1} << 30);
  printf("%s, sm_%d%d; %lld tokens x %lld hidden x top-%lld; device copy of 1 GiB: %.0f GB/s\n\n",
         properties.name, properties.major, properties.minor, static_cast<long long>(sizes.tokens),
         static_cast<long long>(sizes.hidden), static_cast<long long>(sizes.top_k), copy / 1e9);
  const Table table(copy);
  TimeRouting(watch, sizes, table);
  TimeRows(watch, sizes, table);
  TimeBuffers(watch, table);
  return 0;
}

}  // namespace
}  // namespace relibra

int main(int argc, char** argv) { return relibra::Main(argc, argv); }
