// The CPU kernels on one core, beside memcpy in the same run.
//
//   build/release/bin/kernels_benchmark [--benchmark_filter=Histogram]
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/accumulate.h"
#include "kernels/checksum.h"
#include "kernels/destination_order.h"
#include "kernels/instance_map.h"
#include "kernels/load_histogram.h"
#include "kernels/permute.h"

namespace relibra {
namespace {

// Memory aligned as a workspace must be.
template <typename T>
class Buffer {
 public:
  explicit Buffer(size_t count) : blocks_((count * sizeof(T) + 255) / 256), count_(count) {}
  T* data() { return reinterpret_cast<T*>(blocks_.data()); }
  size_t size() const { return count_; }

 private:
  struct alignas(256) Block {
    uint8_t bytes[256];
  };
  std::vector<Block> blocks_;
  size_t count_;
};

// Ids with the skew that routers show: expert e is drawn as often as 1 / (e + 8).
template <typename Id>
std::vector<Id> SkewedIds(size_t count, int experts) {
  std::vector<double> weights(static_cast<size_t>(experts));
  for (int e = 0; e < experts; ++e) weights[static_cast<size_t>(e)] = 1.0 / (e + 8);
  std::discrete_distribution<int> draw(weights.begin(), weights.end());
  std::mt19937_64 random(1);
  std::vector<Id> ids(count);
  for (Id& id : ids) id = static_cast<Id>(draw(random));
  return ids;
}

void Fail(benchmark::State& state, const absl::Status& status) {
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}

void BM_Memcpy(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  std::vector<uint8_t> from(bytes, 1);
  std::vector<uint8_t> to(bytes);
  for (auto _ : state) {
    memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Memcpy)->Arg(6 << 20)->Arg(256 << 20);

template <typename Id, IdType type>
void BM_LoadHistogram(benchmark::State& state) {
  const int64_t layers = state.range(0);
  const int64_t experts = state.range(1);
  const int64_t top_k = 8;
  const int64_t tokens = 16384 * 48 / layers;
  const std::vector<Id> ids =
      SkewedIds<Id>(static_cast<size_t>(tokens * layers * top_k), static_cast<int>(experts));
  std::vector<uint32_t> counts(static_cast<size_t>(layers * experts));
  IdReport report;
  for (auto _ : state) {
    Fail(state,
         LoadHistogram(
             Executor::Cpu(),
             {.data = ids.data(), .type = type, .tokens = tokens, .layers = layers, .top_k = top_k},
             experts, counts.data(), &report));
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(ids.size()));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(ids.size() * sizeof(Id)));
}
BENCHMARK(BM_LoadHistogram<uint8_t, IdType::kU8>)->Args({48, 128})->Args({58, 256})->Args({1, 128});
BENCHMARK(BM_LoadHistogram<int16_t, IdType::kI16>)->Args({48, 128})->Args({58, 256});
BENCHMARK(BM_LoadHistogram<int32_t, IdType::kI32>)->Args({48, 128});
BENCHMARK(BM_LoadHistogram<int64_t, IdType::kI64>)->Args({48, 128});

constexpr int64_t kTokens = 4096;
constexpr int64_t kTopK = 8;
constexpr int64_t kHidden = 4096;
constexpr int64_t kChoices = kTokens * kTopK;
constexpr int64_t kExperts = 128;
constexpr int64_t kRanks = 8;

void BM_MapToInstances(benchmark::State& state) {
  const std::vector<int32_t> ids = SkewedIds<int32_t>(kChoices, kExperts);
  std::vector<int32_t> offsets(kExperts + 1);
  std::vector<int32_t> rank(2 * kExperts);
  std::vector<int32_t> slot(2 * kExperts);
  const std::vector<uint32_t> quota(2 * kExperts, 100);
  for (int32_t e = 0; e <= kExperts; ++e) offsets[static_cast<size_t>(e)] = 2 * e;
  std::vector<int32_t> out_slot(kChoices);
  std::vector<int32_t> out_rank(kChoices);
  IdReport report;
  Buffer<uint8_t> workspace(*MapToInstancesWorkspaceBytes(Device::kCpu, kChoices, kExperts));
  for (auto _ : state) {
    Fail(state,
         MapToInstances(Executor::Cpu(), {.data = ids.data(), .tokens = kTokens, .top_k = kTopK},
                        {.experts = kExperts,
                         .offsets = offsets.data(),
                         .rank = rank.data(),
                         .slot = slot.data(),
                         .quota = quota.data()},
                        out_slot.data(), out_rank.data(), &report,
                        {workspace.data(), workspace.size()}));
  }
  state.SetItemsProcessed(state.iterations() * kChoices);
}
BENCHMARK(BM_MapToInstances);

// Order of a random routing over ranks.
struct Routing {
  Routing() : row_of_choice(kChoices) {
    const std::vector<int32_t> destination = SkewedIds<int32_t>(kChoices, kRanks);
    status = Run(destination);
  }
  absl::Status Run(const std::vector<int32_t>& destination) {
    return BuildDestinationOrder(
        Executor::Cpu(), destination.data(), kChoices, kRanks,
        {.counts = counts.data(), .offsets = offsets.data(), .row_of_choice = row_of_choice.data()},
        &report, {workspace.data(), workspace.size()});
  }
  RowMap map() const {
    return {.row_of_choice = row_of_choice.data(),
            .tokens = kTokens,
            .top_k = kTopK,
            .hidden = kHidden};
  }
  std::vector<int64_t> counts = std::vector<int64_t>(kRanks);
  std::vector<int64_t> offsets = std::vector<int64_t>(kRanks + 1);
  std::vector<int32_t> row_of_choice;
  absl::Status status;
  IdReport report;
  Buffer<uint8_t> workspace{kRanks * sizeof(int32_t)};
};

void BM_BuildDestinationOrder(benchmark::State& state) {
  Routing routing;
  const std::vector<int32_t> destination = SkewedIds<int32_t>(kChoices, kRanks);
  for (auto _ : state) Fail(state, routing.Run(destination));
  state.SetItemsProcessed(state.iterations() * kChoices);
}
BENCHMARK(BM_BuildDestinationOrder);

constexpr int64_t kTokenBytes = kTokens * kHidden * 2;  // bf16
constexpr int64_t kRowBytes = kChoices * kHidden * 2;

void BM_Permute(benchmark::State& state) {
  const Routing routing;
  Fail(state, routing.status);
  Buffer<uint16_t> tokens(kTokens * kHidden);
  Buffer<uint16_t> rows(kChoices * kHidden);
  for (auto _ : state) {
    Fail(state,
         Permute(Executor::Cpu(), routing.map(), {.data = tokens.data()}, {.data = rows.data()}));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * (kTokenBytes + kRowBytes));
}
BENCHMARK(BM_Permute);

void BM_Combine(benchmark::State& state) {
  const Routing routing;
  Fail(state, routing.status);
  Buffer<uint16_t> tokens(kTokens * kHidden);
  Buffer<uint16_t> rows(kChoices * kHidden);
  const std::vector<float> weights(kChoices, 0.125f);
  for (auto _ : state) {
    Fail(state, Combine(Executor::Cpu(), routing.map(), {.data = rows.data()}, weights.data(),
                        {.data = tokens.data()}));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * (kTokenBytes + kRowBytes));
}
BENCHMARK(BM_Combine);

void BM_CombineBackward(benchmark::State& state) {
  const Routing routing;
  Fail(state, routing.status);
  Buffer<uint16_t> tokens(kTokens * kHidden);
  Buffer<uint16_t> rows(kChoices * kHidden);
  Buffer<uint16_t> grad_rows(kChoices * kHidden);
  const std::vector<float> weights(kChoices, 0.125f);
  std::vector<float> grad_weights(kChoices);
  for (auto _ : state) {
    Fail(state, CombineBackward(Executor::Cpu(), routing.map(), {.data = tokens.data()},
                                {.data = rows.data()}, weights.data(), {.data = grad_rows.data()},
                                grad_weights.data()));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * (kTokenBytes + 2 * kRowBytes));
}
BENCHMARK(BM_CombineBackward);

void BM_Accumulate(benchmark::State& state) {
  constexpr int64_t kCount = 32 << 20;
  Buffer<float> home(kCount);
  Buffer<uint16_t> replica(kCount);
  const std::vector<const void*> replicas = {replica.data()};
  for (auto _ : state) {
    Fail(state,
         AccumulateGradients(Executor::Cpu(), home.data(), replicas, FloatType::kBf16, kCount));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kCount * 10);
}
BENCHMARK(BM_Accumulate);

void BM_Checksum(benchmark::State& state) {
  std::vector<uint8_t> data(256 << 20, 7);
  uint64_t checksum = 0;
  for (auto _ : state) {
    Fail(state,
         Checksum(Executor::Cpu(), data.data(), static_cast<int64_t>(data.size()), &checksum));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(data.size()));
}
BENCHMARK(BM_Checksum);

}  // namespace
}  // namespace relibra

BENCHMARK_MAIN();
