#include "kernels/accumulate.h"

#include <gmock/gmock.h>

#include <memory>

#include "tests/kernels/float_arrays.h"
#include "tests/kernels/kernel_test_device.h"

namespace relibra::kernel_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Case {
  size_t count;
  size_t replicas;
  FloatType type;
  size_t shift;  // elements off alignment
};

void ExpectSumInOrder(const Case& c, std::mt19937_64& random) {
  SCOPED_TRACE(testing::Message() << c.count << " elements, " << c.replicas << " replicas, "
                                  << NameOf(c.type) << ", shift " << c.shift);
  std::vector<float> expected = RandomWeights(c.count, random);
  DeviceArray<float> home(expected, c.shift);
  std::vector<std::unique_ptr<DeviceArray<uint8_t>>> replicas;
  std::vector<const void*> pointers;
  for (size_t r = 0; r < c.replicas; ++r) {
    const std::vector<uint8_t> bytes = RandomFloats(c.type, c.count, random);
    // In float, since its order and rounding are part of the contract; both are exact to read.
    for (size_t i = 0; i < c.count; ++i) {
      expected[i] += static_cast<float>(ValueAt(c.type, bytes, i));
    }
    replicas.push_back(std::make_unique<DeviceArray<uint8_t>>(bytes, c.shift * SizeOf(c.type)));
    pointers.push_back(replicas.back()->data());
  }
  const absl::Status status = AccumulateGradients(TestExecutor(), home.data(), pointers, c.type,
                                                  static_cast<int64_t>(c.count));
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(home.Read(), expected);
}

using AccumulateTest = KernelTest;

TEST_F(AccumulateTest, AddsReplicasInTheOrderGiven) {
  // In fp32, (1e8 + -1e8) + 1 is 1 and (1e8 + 1) + -1e8 is 0.
  DeviceArray<float> a(std::vector<float>{-1e8f});
  DeviceArray<float> b(std::vector<float>{1.0f});
  DeviceArray<float> home(std::vector<float>{1e8f});
  const std::vector<const void*> first_a = {a.data(), b.data()};
  const std::vector<const void*> first_b = {b.data(), a.data()};
  ASSERT_TRUE(AccumulateGradients(TestExecutor(), home.data(), first_a, FloatType::kFp32, 1).ok());
  EXPECT_THAT(home.Read(), ElementsAre(1.0f));
  DeviceArray<float> again(std::vector<float>{1e8f});
  ASSERT_TRUE(AccumulateGradients(TestExecutor(), again.data(), first_b, FloatType::kFp32, 1).ok());
  EXPECT_THAT(again.Read(), ElementsAre(0.0f));
}

TEST_F(AccumulateTest, EqualsSequentialSumsForEveryTypeSizeAndAlignment) {
  std::mt19937_64 random(10);
  for (const FloatType type : {FloatType::kBf16, FloatType::kFp32}) {
    for (const size_t count : {0u, 1u, 7u, 8u, 9u, 255u, 2048u, 5001u}) {
      for (const size_t replicas : {1u, 2u, 3u, 4u, 5u, 16u, 17u, 40u}) {
        for (const size_t shift : {0u, 1u, 4u, 8u}) {
          ExpectSumInOrder({count, replicas, type, shift}, random);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(AccumulateTest, LeavesTheHomeAloneWithoutReplicas) {
  DeviceArray<float> home(std::vector<float>{1, 2});
  EXPECT_TRUE(AccumulateGradients(TestExecutor(), home.data(), {}, FloatType::kBf16, 2).ok());
  EXPECT_THAT(home.Read(), ElementsAre(1, 2));
}

TEST_F(AccumulateTest, NamesTheArgumentAtFault) {
  DeviceArray<float> memory(8);
  const void* const good = memory.data() + 4;
  const auto message = [](float* home, absl::Span<const void* const> replicas, FloatType type,
                          int64_t count) {
    return std::string(AccumulateGradients(TestExecutor(), home, replicas, type, count).message());
  };
  EXPECT_THAT(message(memory.data(), {good}, FloatType::kFp16, 4), HasSubstr("neither bf16 nor"));
  EXPECT_THAT(message(memory.data(), {good}, FloatType::kBf16, -4), HasSubstr("count is -4"));
  EXPECT_THAT(message(nullptr, {good}, FloatType::kBf16, 4), HasSubstr("home is null"));
  EXPECT_THAT(message(memory.data(), {good, nullptr}, FloatType::kBf16, 4),
              HasSubstr("replicas[1] is null"));
  const void* const odd = static_cast<const char*>(good) + 1;
  EXPECT_THAT(message(memory.data(), {odd}, FloatType::kBf16, 4),
              HasSubstr("replicas[0] is not aligned to 2 bytes"));
}

}  // namespace
}  // namespace relibra::kernel_test
