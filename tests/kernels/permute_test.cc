#include "kernels/permute.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/kernels/float_arrays.h"
#include "tests/kernels/kernel_test_device.h"

namespace relibra::kernel_test {
namespace {

using testing::HasSubstr;

constexpr double kFloatHalfStep = 0x1p-24;  // relative error of one fp32 operation

struct Shape {
  size_t tokens;
  size_t top_k;
  size_t hidden;
  size_t scale_block = 128;
  size_t shift = 0;  // elements off alignment
  double not_routed = 0;

  size_t choices() const { return tokens * top_k; }
  size_t scales_per_row() const { return (hidden + scale_block - 1) / scale_block; }
};

std::string Describe(const Shape& shape) {
  return absl::StrCat("tokens ", shape.tokens, " top_k ", shape.top_k, " hidden ", shape.hidden,
                      " scale_block ", shape.scale_block, " shift ", shape.shift);
}

// A random one-to-one map from the routed choices into as many rows as there are choices.
std::vector<int32_t> RandomRows(const Shape& shape, std::mt19937_64& random) {
  std::vector<int32_t> rows(shape.choices());
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), random);
  std::bernoulli_distribution drop(shape.not_routed);
  for (int32_t& row : rows) row = drop(random) ? -1 : row;
  return rows;
}

// Rows of one type in device memory, and what they stand for.
class Rows {
 public:
  Rows(FloatType type, size_t rows, const Shape& shape, std::mt19937_64& random)
      : type_(type),
        shape_(shape),
        bytes_(RandomFloats(type, rows * shape.hidden, random)),
        scales_(type == FloatType::kFp8E4m3 ? RandomWeights(rows * shape.scales_per_row(), random)
                                            : std::vector<float>{}),
        device_(bytes_, shape.shift * SizeOf(type)),
        device_scales_(scales_) {}

  FloatRows View() {
    return {.data = device_.data(),
            .type = type_,
            .scales = scaled() ? device_scales_.data() : nullptr,
            .scale_block = static_cast<int64_t>(shape_.scale_block)};
  }
  bool scaled() const { return type_ == FloatType::kFp8E4m3; }
  double At(size_t row, size_t column) const {
    const double value = ValueAt(type_, bytes_, row * shape_.hidden + column);
    if (!scaled()) return value;
    return value * scales_[row * shape_.scales_per_row() + column / shape_.scale_block];
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  const std::vector<float>& scales() const { return scales_; }

 private:
  FloatType type_;
  Shape shape_;
  std::vector<uint8_t> bytes_;
  std::vector<float> scales_;
  DeviceArray<uint8_t> device_;
  DeviceArray<float> device_scales_;
};

RowMap MapOf(const Shape& shape, DeviceArray<int32_t>& rows) {
  return {.row_of_choice = rows.data(),
          .tokens = static_cast<int64_t>(shape.tokens),
          .top_k = static_cast<int64_t>(shape.top_k),
          .hidden = static_cast<int64_t>(shape.hidden)};
}

// The row that choice c's token came from, or poison where no choice names the row.
template <typename T>
std::vector<T> Permuted(const std::vector<T>& source, size_t width, const Shape& shape,
                        const std::vector<int32_t>& rows, T poison) {
  std::vector<T> out(shape.choices() * width, poison);
  for (size_t c = 0; c < rows.size(); ++c) {
    if (rows[c] < 0) continue;
    std::copy_n(source.begin() + static_cast<ptrdiff_t>(c / shape.top_k * width), width,
                out.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(rows[c]) * width));
  }
  return out;
}

class PermuteTest : public KernelTest {
 protected:
  void ExpectPermuted(FloatType type, const Shape& shape) {
    SCOPED_TRACE(absl::StrCat(NameOf(type), " ", Describe(shape)));
    const std::vector<int32_t> row_of_choice = RandomRows(shape, random_);
    DeviceArray<int32_t> map(row_of_choice);
    Rows tokens(type, shape.tokens, shape, random_);
    DeviceArray<uint8_t> out(shape.choices() * shape.hidden * SizeOf(type),
                             shape.shift * SizeOf(type));
    DeviceArray<float> out_scales(tokens.scaled() ? shape.choices() * shape.scales_per_row() : 0);
    const absl::Status status = Permute(TestExecutor(), MapOf(shape, map), tokens.View(),
                                        {.data = out.data(),
                                         .type = type,
                                         .scales = tokens.scaled() ? out_scales.data() : nullptr,
                                         .scale_block = static_cast<int64_t>(shape.scale_block)});
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(out.Read(),
              Permuted(tokens.bytes(), shape.hidden * SizeOf(type), shape, row_of_choice, kPoison));
    float poison;
    memset(&poison, kPoison, sizeof(poison));
    if (tokens.scaled()) {
      ASSERT_EQ(out_scales.Read(),
                Permuted(tokens.scales(), shape.scales_per_row(), shape, row_of_choice, poison));
    }
  }

  void ExpectCombined(FloatType in, FloatType out_type, const Shape& shape, bool weighted) {
    SCOPED_TRACE(absl::StrCat(NameOf(in), " to ", NameOf(out_type), " ", Describe(shape)));
    const std::vector<int32_t> row_of_choice = RandomRows(shape, random_);
    const std::vector<float> weights = RandomWeights(shape.choices(), random_);
    DeviceArray<int32_t> map(row_of_choice);
    DeviceArray<float> device_weights(weights);
    Rows rows(in, shape.choices(), shape, random_);
    DeviceArray<uint8_t> out(shape.tokens * shape.hidden * SizeOf(out_type),
                             shape.shift * SizeOf(out_type));
    const absl::Status status =
        Combine(TestExecutor(), MapOf(shape, map), rows.View(),
                weighted ? device_weights.data() : nullptr, {.data = out.data(), .type = out_type});
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<uint8_t> result = out.Read();
    for (size_t t = 0; t < shape.tokens; ++t) {
      for (size_t h = 0; h < shape.hidden; ++h) {
        double sum = 0;
        double size = 0;
        for (size_t k = 0; k < shape.top_k; ++k) {
          const size_t c = t * shape.top_k + k;
          if (row_of_choice[c] < 0) continue;
          const double term =
              (weighted ? weights[c] : 1.0) * rows.At(static_cast<size_t>(row_of_choice[c]), h);
          sum += term;
          size += std::abs(term);
        }
        const double found = ValueAt(out_type, result, t * shape.hidden + h);
        const double limit = HalfStep(out_type, std::max(std::abs(sum), std::abs(found))) +
                             static_cast<double>(shape.top_k + 3) * kFloatHalfStep * size;
        ASSERT_LE(std::abs(found - sum), limit) << "token " << t << " element " << h;
      }
    }
  }

  void ExpectGradients(FloatType grad_type, FloatType in, const Shape& shape, bool weighted,
                       bool with_grad_weights = true) {
    SCOPED_TRACE(
        absl::StrCat("gradient ", NameOf(grad_type), " of ", NameOf(in), " ", Describe(shape)));
    const std::vector<int32_t> row_of_choice = RandomRows(shape, random_);
    const std::vector<float> weights = RandomWeights(shape.choices(), random_);
    DeviceArray<int32_t> map(row_of_choice);
    DeviceArray<float> device_weights(weights);
    Rows rows(in, shape.choices(), shape, random_);
    Rows grad_out(grad_type, shape.tokens, shape, random_);
    DeviceArray<uint8_t> grad_rows(shape.choices() * shape.hidden * SizeOf(grad_type),
                                   shape.shift * SizeOf(grad_type));
    DeviceArray<float> grad_weights(shape.choices());
    const absl::Status status = CombineBackward(TestExecutor(), MapOf(shape, map), grad_out.View(),
                                                with_grad_weights ? rows.View() : FloatRows{},
                                                weighted ? device_weights.data() : nullptr,
                                                {.data = grad_rows.data(), .type = grad_type},
                                                with_grad_weights ? grad_weights.data() : nullptr);
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<uint8_t> result = grad_rows.Read();
    const std::vector<float> result_weights = grad_weights.Read();
    std::vector<bool> named(shape.choices(), false);
    for (size_t c = 0; c < shape.choices(); ++c) {
      double dot = 0;
      double size = 0;
      if (row_of_choice[c] >= 0) {
        const auto row = static_cast<size_t>(row_of_choice[c]);
        named[row] = true;
        for (size_t h = 0; h < shape.hidden; ++h) {
          const double grad = grad_out.At(c / shape.top_k, h);
          const double expected = (weighted ? weights[c] : 1.0) * grad;
          const double found = ValueAt(grad_type, result, row * shape.hidden + h);
          const double limit = HalfStep(grad_type, std::max(std::abs(expected), std::abs(found))) +
                               kFloatHalfStep * std::abs(expected);
          ASSERT_LE(std::abs(found - expected), limit) << "row " << row << " element " << h;
          dot += grad * rows.At(row, h);
          size += std::abs(grad * rows.At(row, h));
        }
      }
      if (!with_grad_weights) continue;
      const double limit = (static_cast<double>(shape.hidden) / 32 + 16) * kFloatHalfStep * size;
      ASSERT_LE(std::abs(result_weights[c] - dot), limit) << "choice " << c;
    }
    for (size_t i = 0; i < result.size(); ++i) {
      const size_t row = i / (shape.hidden * SizeOf(grad_type));
      ASSERT_TRUE(named[row] || result[i] == kPoison) << "row " << row << " has no choice";
    }
  }

  std::mt19937_64 random_{11};
};

// Aligned and not, short rows that share a block, long ones that a block walks along, tokens that
// fill no block.
const Shape kShapes[] = {
    {.tokens = 5, .top_k = 2, .hidden = 8, .scale_block = 8},
    {.tokens = 67, .top_k = 4, .hidden = 64, .scale_block = 16},
    {.tokens = 33, .top_k = 8, .hidden = 264, .scale_block = 128, .not_routed = 0.2},
    {.tokens = 3, .top_k = 3, .hidden = 4104},
    {.tokens = 9, .top_k = 5, .hidden = 2056, .not_routed = 0.5},
    {.tokens = 1, .top_k = 1, .hidden = 1, .scale_block = 3},
    {.tokens = 17, .top_k = 6, .hidden = 37, .scale_block = 10, .not_routed = 0.3},
    {.tokens = 8, .top_k = 2, .hidden = 131, .shift = 1},
    {.tokens = 8, .top_k = 2, .hidden = 128, .scale_block = 12},
    {.tokens = 8, .top_k = 2, .hidden = 128, .shift = 1},
    {.tokens = 4, .top_k = 16, .hidden = 72, .not_routed = 1},
};

TEST_F(PermuteTest, CopiesEachTokenToAllItsRowsInEveryType) {
  for (const Shape& shape : kShapes) {
    for (const FloatType type : kAllFloatTypes) ExpectPermuted(type, shape);
  }
}

TEST_F(PermuteTest, CopiesForEveryTopK) {
  for (size_t top_k = 1; top_k <= 16; ++top_k) {
    ExpectPermuted(FloatType::kBf16, {.tokens = 29, .top_k = top_k, .hidden = 48});
  }
}

TEST_F(PermuteTest, CombinesLikeFloat64InEveryPairOfTypes) {
  for (const Shape& shape : kShapes) {
    for (const FloatType in : kAllFloatTypes) {
      for (const FloatType out : kComputedFloatTypes) {
        ExpectCombined(in, out, shape, /*weighted=*/true);
      }
    }
  }
}

TEST_F(PermuteTest, CombinesForEveryTopKWithAndWithoutWeights) {
  for (size_t top_k = 1; top_k <= 16; ++top_k) {
    for (const bool weighted : {false, true}) {
      const Shape shape = {.tokens = 13, .top_k = top_k, .hidden = 40, .not_routed = 0.1};
      ExpectCombined(FloatType::kBf16, FloatType::kFp32, shape, weighted);
    }
  }
}

TEST_F(PermuteTest, GradientsAreLikeFloat64InEveryPairOfTypes) {
  for (const Shape& shape : kShapes) {
    for (const FloatType in : kAllFloatTypes) {
      for (const FloatType grad : kComputedFloatTypes) {
        ExpectGradients(grad, in, shape, /*weighted=*/true);
      }
    }
  }
}

TEST_F(PermuteTest, GradientsForEveryTopKWithAndWithoutWeights) {
  for (size_t top_k = 1; top_k <= 16; ++top_k) {
    for (const bool weighted : {false, true}) {
      const Shape shape = {.tokens = 7, .top_k = top_k, .hidden = 56, .not_routed = 0.1};
      ExpectGradients(FloatType::kFp16, FloatType::kBf16, shape, weighted);
      ExpectGradients(FloatType::kBf16, FloatType::kBf16, shape, weighted,
                      /*with_grad_weights=*/false);
    }
  }
}

TEST_F(PermuteTest, AlignedAndUnalignedRowsGiveTheSameBits) {
  const Shape shape = {.tokens = 6, .top_k = 3, .hidden = 296};
  const std::vector<int32_t> row_of_choice = RandomRows(shape, random_);
  DeviceArray<int32_t> map(row_of_choice);
  const std::vector<uint8_t> rows =
      RandomFloats(FloatType::kBf16, shape.choices() * shape.hidden, random_);
  const std::vector<uint8_t> grad =
      RandomFloats(FloatType::kBf16, shape.tokens * shape.hidden, random_);
  const std::vector<float> weights = RandomWeights(shape.choices(), random_);
  DeviceArray<float> device_weights(weights);
  std::vector<std::vector<float>> combined;
  std::vector<std::vector<float>> grad_weights;
  for (const size_t shift : {0u, 2u}) {  // bytes
    DeviceArray<uint8_t> device_rows(rows, shift);
    DeviceArray<uint8_t> device_grad(grad, shift);
    DeviceArray<float> out(shape.tokens * shape.hidden);
    DeviceArray<uint8_t> grad_rows(rows.size());
    DeviceArray<float> out_weights(shape.choices());
    ASSERT_TRUE(Combine(TestExecutor(), MapOf(shape, map), {.data = device_rows.data()},
                        device_weights.data(), {.data = out.data(), .type = FloatType::kFp32})
                    .ok());
    ASSERT_TRUE(CombineBackward(TestExecutor(), MapOf(shape, map), {.data = device_grad.data()},
                                {.data = device_rows.data()}, device_weights.data(),
                                {.data = grad_rows.data()}, out_weights.data())
                    .ok());
    combined.push_back(out.Read());
    grad_weights.push_back(out_weights.Read());
  }
  EXPECT_EQ(combined[0], combined[1]);
  EXPECT_EQ(grad_weights[0], grad_weights[1]);

  // And the same bits as the CPU gives.
  std::vector<float> on_cpu(shape.tokens * shape.hidden);
  ASSERT_TRUE(Combine(Executor::Cpu(),
                      {.row_of_choice = row_of_choice.data(),
                       .tokens = static_cast<int64_t>(shape.tokens),
                       .top_k = static_cast<int64_t>(shape.top_k),
                       .hidden = static_cast<int64_t>(shape.hidden)},
                      {.data = rows.data()}, weights.data(),
                      {.data = on_cpu.data(), .type = FloatType::kFp32})
                  .ok());
  EXPECT_EQ(combined[0], on_cpu);
}

TEST_F(PermuteTest, UndoesPermuteWhenEachTokenHasOneRow) {
  const Shape shape = {.tokens = 50, .top_k = 1, .hidden = 96};
  DeviceArray<int32_t> map(RandomRows(shape, random_));
  Rows tokens(FloatType::kFp16, shape.tokens, shape, random_);
  DeviceArray<uint8_t> rows(tokens.bytes().size());
  DeviceArray<uint8_t> back(tokens.bytes().size());
  ASSERT_TRUE(Permute(TestExecutor(), MapOf(shape, map), tokens.View(),
                      {.data = rows.data(), .type = FloatType::kFp16})
                  .ok());
  ASSERT_TRUE(Combine(TestExecutor(), MapOf(shape, map),
                      {.data = rows.data(), .type = FloatType::kFp16}, nullptr,
                      {.data = back.data(), .type = FloatType::kFp16})
                  .ok());
  EXPECT_EQ(back.Read(), tokens.bytes());
}

TEST_F(PermuteTest, AcceptsZeroTokensAndZeroHidden) {
  for (const Shape& shape : {Shape{.tokens = 0, .top_k = 8, .hidden = 64},
                             Shape{.tokens = 4, .top_k = 2, .hidden = 0}}) {
    ExpectPermuted(FloatType::kBf16, shape);
    ExpectCombined(FloatType::kBf16, FloatType::kBf16, shape, true);
    ExpectGradients(FloatType::kBf16, FloatType::kBf16, shape, true);
  }
}

TEST_F(PermuteTest, NamesTheArgumentAtFault) {
  DeviceArray<int32_t> map(std::vector<int32_t>(8, 0));
  DeviceArray<float> memory(256);
  const RowMap good = {.row_of_choice = map.data(), .tokens = 4, .top_k = 2, .hidden = 16};
  const FloatRows bf16 = {.data = memory.data()};
  const MutableFloatRows out = {.data = memory.data() + 128};
  const FloatRows fp8 = {.data = memory.data(), .type = FloatType::kFp8E4m3};
  const auto permute = [&](const RowMap& rows, const FloatRows& from, const MutableFloatRows& to) {
    return std::string(Permute(TestExecutor(), rows, from, to).message());
  };
  RowMap bad = good;
  bad.tokens = -1;
  EXPECT_THAT(permute(bad, bf16, out), HasSubstr("map.tokens is -1"));
  bad = good;
  bad.top_k = 0;
  EXPECT_THAT(permute(bad, bf16, out), HasSubstr("map.top_k is 0"));
  bad = good;
  bad.hidden = kMaxHidden + 1;
  EXPECT_THAT(permute(bad, bf16, out), HasSubstr("map.hidden is 16777217"));
  bad = good;
  bad.row_of_choice = nullptr;
  EXPECT_THAT(permute(bad, bf16, out), HasSubstr("map.row_of_choice is null"));
  EXPECT_THAT(permute(good, {}, out), HasSubstr("tokens.data is null"));
  EXPECT_THAT(permute(good, fp8, out), HasSubstr("tokens is fp8 without scales"));
  EXPECT_THAT(permute(good, bf16, {.data = memory.data(), .scales = memory.data()}),
              HasSubstr("rows has scales without fp8"));
  EXPECT_THAT(permute(good, bf16, {.data = memory.data(), .type = FloatType::kFp32}),
              HasSubstr("tokens and rows differ in type"));
  EXPECT_THAT(permute(good, {.data = memory.data(), .scale_block = 0}, out),
              HasSubstr("tokens.scale_block is 0"));
  EXPECT_THAT(std::string(Combine(TestExecutor(), good, bf16, nullptr,
                                  {.data = memory.data() + 128, .type = FloatType::kFp8E4m3})
                              .message()),
              HasSubstr("out.type is fp8"));
  EXPECT_THAT(
      std::string(
          CombineBackward(TestExecutor(), good, bf16, {}, nullptr, out, memory.data()).message()),
      HasSubstr("rows.data is null"));
  float poison;
  memset(&poison, kPoison, sizeof(poison));
  EXPECT_THAT(memory.Read(), testing::Each(poison)) << "nothing may have run";
}

}  // namespace
}  // namespace relibra::kernel_test
