#include "kernels/checksum.h"

#include <gmock/gmock.h>

#include <random>
#include <set>

#include "tests/kernels/kernel_test_device.h"

namespace relibra::kernel_test {
namespace {

using testing::HasSubstr;

uint64_t ChecksumOf(const std::vector<uint8_t>& bytes, size_t shift = 0) {
  DeviceArray<uint8_t> data(bytes, shift);
  DeviceArray<uint64_t> checksum(1);
  const absl::Status status =
      Checksum(TestExecutor(), data.data(), static_cast<int64_t>(bytes.size()), checksum.data());
  EXPECT_TRUE(status.ok()) << status;
  return checksum.ReadOne();
}

std::vector<uint8_t> RandomBytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

using ChecksumTest = KernelTest;

// Values from a Python program written from the definition.
TEST_F(ChecksumTest, KeepsTheValuesThatAgentsExchange) {
  EXPECT_EQ(ChecksumOf({}), 0x71aff601db6b1affu);
  EXPECT_EQ(ChecksumOf({'r', 'e', 'l', 'i', 'b', 'r', 'a'}), 0xfed55e0a4f6852ceu);
  std::vector<uint8_t> bytes(256);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
  EXPECT_EQ(ChecksumOf(bytes), 0x89fb59f401c5f7b6u);
  bytes.resize(1001);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7);
  EXPECT_EQ(ChecksumOf(bytes), 0xf63827b6bf751725u);
}

TEST_F(ChecksumTest, IsTheSameOnEveryExecutor) {
  for (const size_t count : {1u, 8u, 15u, 16u, 17u, 4095u, 65536u, 1000003u}) {
    const std::vector<uint8_t> bytes = RandomBytes(count, count);
    uint64_t on_cpu = 0;
    ASSERT_TRUE(Checksum(Executor::Cpu(), bytes.data(), static_cast<int64_t>(count), &on_cpu).ok());
    EXPECT_EQ(ChecksumOf(bytes), on_cpu) << count;
  }
}

TEST_F(ChecksumTest, DoesNotDependOnAlignment) {
  const std::vector<uint8_t> bytes = RandomBytes(777, 1);
  const uint64_t aligned = ChecksumOf(bytes);
  for (size_t shift = 1; shift < 16; ++shift) EXPECT_EQ(ChecksumOf(bytes, shift), aligned);
}

TEST_F(ChecksumTest, SeesEverySingleFlippedBit) {
  std::vector<uint8_t> bytes = RandomBytes(67, 2);
  std::set<uint64_t> seen = {ChecksumOf(bytes)};
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    EXPECT_TRUE(seen.insert(ChecksumOf(bytes)).second) << bit;
    bytes[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
  }
}

TEST_F(ChecksumTest, SeesSwappedWords) {
  // Small, similar words: a plain sum, or one of word x index, would miss some of these.
  std::vector<uint8_t> bytes(64 * 8, 0);
  for (size_t w = 0; w < 64; ++w) bytes[w * 8] = static_cast<uint8_t>(w);
  std::set<uint64_t> seen = {ChecksumOf(bytes)};
  for (size_t a = 0; a < 64; ++a) {
    for (size_t b = a + 1; b < 64; b += 5) {
      std::swap(bytes[a * 8], bytes[b * 8]);
      EXPECT_TRUE(seen.insert(ChecksumOf(bytes)).second) << a << " " << b;
      std::swap(bytes[a * 8], bytes[b * 8]);
    }
  }
}

TEST_F(ChecksumTest, SeesTruncationEvenOfZeros) {
  std::set<uint64_t> seen;
  for (size_t count = 0; count < 70; ++count) {
    EXPECT_TRUE(seen.insert(ChecksumOf(std::vector<uint8_t>(count, 0))).second) << count;
  }
}

TEST_F(ChecksumTest, OverwritesTheResult) {
  DeviceArray<uint64_t> checksum(std::vector<uint64_t>{12345});
  ASSERT_TRUE(Checksum(TestExecutor(), nullptr, 0, checksum.data()).ok());
  EXPECT_EQ(checksum.ReadOne(), ChecksumOf({}));
}

TEST_F(ChecksumTest, NamesTheArgumentAtFault) {
  DeviceArray<uint64_t> memory(2);
  const auto message = [](const void* data, int64_t bytes, uint64_t* checksum) {
    return std::string(Checksum(TestExecutor(), data, bytes, checksum).message());
  };
  EXPECT_THAT(message(memory.data(), -1, memory.data()), HasSubstr("bytes is -1"));
  EXPECT_THAT(message(nullptr, 1, memory.data()), HasSubstr("data is null"));
  EXPECT_THAT(message(memory.data(), 1, nullptr), HasSubstr("checksum is null"));
}

}  // namespace
}  // namespace relibra::kernel_test
