#include "planner_service/core/presets.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace relibra {
namespace {

using ::testing::HasSubstr;

// 3 x 2048 x 768 parameters = 4.72 M, 9.4 MB in bfloat16.
TEST(PresetsTest, SizesAQwen3Expert) {
  const ExpertSizes sizes = FindModel("qwen3-30b-a3b")->Sizes();
  EXPECT_EQ(sizes.weight_bytes, 9437184);
  EXPECT_EQ(sizes.gradient_bytes, 18874368);
  EXPECT_EQ(sizes.optimizer_bytes, 56623104);
  EXPECT_EQ(sizes.flops_per_token, 9437184);
  EXPECT_EQ(sizes.token_bytes, 4096);
}

// All routed experts together must come near the size in the model's name: 30, 235, 671, 80 billion
// parameters, of which attention, embeddings and dense layers take a few per cent.
TEST(PresetsTest, ExpertsMakeUpNearlyAllOfTheModel) {
  const std::pair<const char*, double> models[] = {{"qwen3-30b-a3b", 30.5e9},
                                                   {"qwen3-235b-a22b", 235e9},
                                                   {"deepseek-v3", 671e9},
                                                   {"qwen3-next-80b-a3b", 80e9}};
  for (const auto& [name, parameters] : models) {
    const auto model = FindModel(name);
    ASSERT_TRUE(model.ok()) << model.status();
    const double experts = model->Sizes().weight_bytes / 2 * model->experts * model->moe_layers;
    EXPECT_GT(experts, 0.9 * parameters) << name;
    EXPECT_LT(experts, parameters) << name;
  }
}

TEST(PresetsTest, ReachesLessThanThePeakOfEveryGpu) {
  for (const HardwarePreset& gpu : HardwarePresets()) {
    const GpuRates rates = gpu.Rates();
    EXPECT_LT(rates.gemm_flops, gpu.peak_flops);
    EXPECT_LT(rates.in_node_bytes_second, gpu.nvlink_bytes_second);
    EXPECT_LT(rates.cross_node_bytes_second, gpu.network_bytes_second);
    EXPECT_GT(rates.in_node_bytes_second, rates.cross_node_bytes_second);
  }
}

TEST(PresetsTest, NamesWhatItKnowsWhenAskedForSomethingElse) {
  EXPECT_THAT(std::string(FindModel("gpt").status().message()),
              HasSubstr("expected one of qwen3-30b-a3b, qwen3-235b-a22b, deepseek-v3, "
                        "qwen3-next-80b-a3b, got \"gpt\""));
  EXPECT_THAT(std::string(FindHardware("a100").status().message()),
              HasSubstr("h100, h800, h200, b200"));
}

}  // namespace
}  // namespace relibra
