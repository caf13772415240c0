#include "worker_agent/expert_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace relibra::agent {
namespace {

using ::testing::HasSubstr;

GroupShape Shape() {
  return {.nodes = 1, .gpus_per_node = 2, .replica_slots = 1, .experts = 4, .layer_ids = {0, 1}};
}

BufferSpec Weight(uint64_t bytes = 64) {
  return {"weight", FloatType::kBf16, bytes, BufferRole::kWeight};
}
BufferSpec Moment(uint64_t bytes = 128) {
  return {"moment", FloatType::kFp32, bytes, BufferRole::kOptimizerState};
}
BufferSpec Gradient(FloatType replica = FloatType::kBf16) {
  return {"gradient", FloatType::kFp32, 128, BufferRole::kGradient, replica};
}

TEST(ExpertStore, AllocatesDistinctZeroedBuffersAndNoOptimizerStateForReplicas) {
  auto store = ExpertStore::Create(Shape(), 1, {Weight(), Moment(), Gradient()});
  ASSERT_TRUE(store.ok()) << store.status();
  (*store)->AllocateMissing();
  std::set<const char*> seen;
  for (int l = 0; l < 2; ++l) {
    for (int slot = 0; slot < 3; ++slot) {
      for (int b = 0; b < 3; ++b) {
        const char* buffer = (*store)->Buffer(l, slot, b);
        if (slot == 2 && b == 1) {
          EXPECT_EQ(buffer, nullptr);
          continue;
        }
        ASSERT_NE(buffer, nullptr);
        EXPECT_TRUE(seen.insert(buffer).second);
        EXPECT_EQ(std::string(buffer, 64), std::string(64, '\0'));
      }
    }
  }
}

TEST(ExpertStore, KeepsWhatTheTrainerRegistered) {
  auto store = ExpertStore::Create(Shape(), 0, {Weight()});
  std::vector<char> mine(64);
  ASSERT_TRUE((*store)->RegisterBuffer(1, 2, 0, mine.data()).ok());
  (*store)->AllocateMissing();
  EXPECT_EQ((*store)->Buffer(1, 2, 0), mine.data());
}

TEST(ExpertStore, NeighbouringHomeBuffersBecomeOneBlock) {
  auto store = ExpertStore::Create(Shape(), 0, {Weight(256)});
  // A trainer's [slots, 256] tensors, one a layer, far from each other.
  std::vector<char> memory(4096);
  for (int slot = 0; slot < 3; ++slot) {
    ASSERT_TRUE((*store)->RegisterBuffer(0, slot, 0, memory.data() + 256 * slot).ok());
    ASSERT_TRUE((*store)->RegisterBuffer(1, slot, 0, memory.data() + 2048 + 256 * slot).ok());
  }
  const std::vector<MemoryBlock> blocks = (*store)->HomeBlocks();
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].base, memory.data());
  EXPECT_EQ(blocks[0].bytes, 512u);  // the replica slot is not the peers' to read
  EXPECT_EQ(blocks[1].base, memory.data() + 2048);
}

TEST(ExpertStore, CountsWhatMovesAndWhatAReplicaGets) {
  auto store = ExpertStore::Create(Shape(), 0, {Weight(), Moment(), Gradient()});
  EXPECT_EQ((*store)->MovingBytes(), 512u);  // each buffer on a multiple of 256
  EXPECT_EQ((*store)->WeightBytes(), 64u);
  EXPECT_EQ(Gradient(FloatType::kBf16).replica_bytes(), 64u);
  EXPECT_EQ(Gradient(FloatType::kFp32).replica_bytes(), 128u);
}

TEST(ExpertStore, AbandonedSpareMemoryIsNotHandedOutAgain) {
  auto store = ExpertStore::Create(Shape(), 0, {Weight()});
  const char* first = (*store)->Spare(0);
  EXPECT_EQ((*store)->Spare(0), first);
  (*store)->AbandonSpare();
  EXPECT_NE((*store)->Spare(0), first);
}

TEST(ExpertStore, BadSpecsAreRefusedByName) {
  const auto message = [](std::vector<BufferSpec> specs) {
    return std::string(ExpertStore::Create(Shape(), 0, std::move(specs)).status().message());
  };
  EXPECT_THAT(message({}), HasSubstr("no buffer holds weights"));
  EXPECT_THAT(message({Moment()}), HasSubstr("no buffer holds weights"));
  EXPECT_THAT(message({Weight(0)}), HasSubstr("'weight': has 0 bytes"));
  EXPECT_THAT(message({Weight(3)}), HasSubstr("'weight': has 3 bytes"));
  EXPECT_THAT(message({Weight(), Weight()}), HasSubstr("two buffers are named 'weight'"));
  EXPECT_THAT(message({Weight(), Gradient(FloatType::kFp16)}), HasSubstr("fp32 or bf16"));
  EXPECT_FALSE(ExpertStore::Create(Shape(), 2, {Weight()}).ok());
}

TEST(ExpertStore, RegisteringOutOfRangeIsRefused) {
  auto store = ExpertStore::Create(Shape(), 0, {Weight()});
  char byte = 0;
  EXPECT_FALSE((*store)->RegisterBuffer(2, 0, 0, &byte).ok());
  EXPECT_FALSE((*store)->RegisterBuffer(0, 3, 0, &byte).ok());
  EXPECT_FALSE((*store)->RegisterBuffer(0, 0, 1, &byte).ok());
  EXPECT_FALSE((*store)->RegisterBuffer(0, 0, 0, nullptr).ok());
}

TEST(GroupShape, OutOfRangeFieldsAreNamed) {
  const auto message = [](const GroupShape& shape) {
    return std::string(Validate(shape).message());
  };
  GroupShape shape = Shape();
  EXPECT_TRUE(Validate(shape).ok());
  shape.experts = 5;
  EXPECT_THAT(message(shape), HasSubstr("experts is 5, expected a multiple of the 2 ranks"));
  shape = Shape();
  shape.nodes = 0;
  EXPECT_THAT(message(shape), HasSubstr("nodes is 0"));
  shape = Shape();
  shape.layer_ids = {3, 3};
  EXPECT_THAT(message(shape), HasSubstr("layer_ids[1] is 3"));
  shape.layer_ids = {};
  EXPECT_THAT(message(shape), HasSubstr("number of layers is 0"));
}

}  // namespace
}  // namespace relibra::agent
