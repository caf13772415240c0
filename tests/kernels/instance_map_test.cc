#include "kernels/instance_map.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tests/kernels/id_arrays.h"
#include "tests/kernels/kernel_test_device.h"

namespace relibra::kernel_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

struct Table {
  std::vector<int32_t> offsets = {0};
  std::vector<int32_t> rank;
  std::vector<int32_t> slot;
  std::vector<uint32_t> quota;

  void AddExpert(const std::vector<uint32_t>& quotas) {
    for (const uint32_t q : quotas) {
      const auto i = static_cast<int32_t>(quota.size());
      rank.push_back(i * 3 % 8);
      slot.push_back(1000 + i);  // tells the instances apart
      quota.push_back(q);
    }
    offsets.push_back(static_cast<int32_t>(quota.size()));
  }
  int64_t experts() const { return static_cast<int64_t>(offsets.size()) - 1; }
  InstanceTable View() const {
    return {.experts = experts(),
            .offsets = offsets.data(),
            .rank = rank.data(),
            .slot = slot.data(),
            .quota = quota.data()};
  }
};

struct Ids {
  std::vector<int64_t> values = {};  // [tokens, stride]
  IdType type = IdType::kI32;
  int64_t tokens = 0;
  int64_t top_k = 1;
  int64_t stride = 0;

  int64_t At(int64_t token, int64_t k) const {
    return values[static_cast<size_t>(token * (stride == 0 ? top_k : stride) + k)];
  }
};

struct Mapped {
  absl::Status status;
  std::vector<int32_t> slot;
  std::vector<int32_t> rank;
  IdReport report;
};

Mapped Map(const Ids& ids, const Table& table) {
  DeviceArray<uint8_t> device_ids(Pack(ids.values, ids.type));
  DeviceArray<int32_t> offsets(table.offsets);
  DeviceArray<int32_t> rank(table.rank);
  DeviceArray<int32_t> slot(table.slot);
  DeviceArray<uint32_t> quota(table.quota);
  const int64_t choices = ids.tokens * ids.top_k;
  DeviceArray<int32_t> out_slot(static_cast<size_t>(choices));
  DeviceArray<int32_t> out_rank(static_cast<size_t>(choices));
  DeviceArray<IdReport> report(1);
  const absl::StatusOr<size_t> bytes =
      MapToInstancesWorkspaceBytes(TestExecutor().device, choices, table.experts());
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  DeviceArray<uint8_t> workspace(bytes.value_or(0));
  Mapped result;
  result.status = MapToInstances(TestExecutor(),
                                 {.data = device_ids.data(),
                                  .type = ids.type,
                                  .tokens = ids.tokens,
                                  .top_k = ids.top_k,
                                  .token_stride = ids.stride},
                                 {.experts = table.experts(),
                                  .offsets = offsets.data(),
                                  .rank = rank.data(),
                                  .slot = slot.data(),
                                  .quota = quota.data()},
                                 out_slot.data(), out_rank.data(), report.data(),
                                 {workspace.data(), workspace.size()});
  workspace.Read();  // checks its guards
  result.slot = out_slot.Read();
  result.rank = out_rank.Read();
  result.report = report.ReadOne();
  return result;
}

// Which instance (index into the table) serves each occurrence of an expert, from the other end of
// the rule: instance [a, b) of Q serves occurrences ceil(a n / Q) .. ceil(b n / Q) - 1.
std::vector<int32_t> InstancesOfExpert(const Table& table, int64_t expert, int64_t n) {
  const int32_t begin = table.offsets[static_cast<size_t>(expert)];
  const int32_t end = table.offsets[static_cast<size_t>(expert) + 1];
  __int128 planned = 0;
  for (int32_t i = begin; i < end; ++i) planned += table.quota[static_cast<size_t>(i)];
  if (planned == 0) return std::vector<int32_t>(static_cast<size_t>(n), begin);
  std::vector<int32_t> instances;
  __int128 interval_end = 0;
  for (int32_t i = begin; i < end; ++i) {
    interval_end += table.quota[static_cast<size_t>(i)];
    const auto until = static_cast<size_t>((interval_end * n + planned - 1) / planned);
    instances.resize(until, i);
  }
  return instances;
}

void ExpectRuleHolds(const Ids& ids, const Table& table) {
  const Mapped mapped = Map(ids, table);
  std::map<int64_t, std::vector<size_t>> choices_of_expert;
  uint64_t invalid = 0;
  for (int64_t t = 0; t < ids.tokens; ++t) {
    for (int64_t k = 0; k < ids.top_k; ++k) {
      const int64_t id = ids.At(t, k);
      const auto choice = static_cast<size_t>(t * ids.top_k + k);
      if (id >= 0 && id < table.experts()) {
        choices_of_expert[id].push_back(choice);
        continue;
      }
      ASSERT_EQ(mapped.slot[choice], -1);
      ASSERT_EQ(mapped.rank[choice], -1);
      if (id >= table.experts() && invalid++ == 0) {
        EXPECT_EQ(mapped.report.first_position, choice);
      }
    }
  }
  EXPECT_EQ(mapped.report.invalid, invalid);
  if (OnCpu() && invalid > 0) {
    EXPECT_EQ(mapped.status.code(), absl::StatusCode::kInvalidArgument);
  } else {
    EXPECT_TRUE(mapped.status.ok()) << mapped.status;
  }
  for (const auto& [expert, choices] : choices_of_expert) {
    const std::vector<int32_t> instances =
        InstancesOfExpert(table, expert, static_cast<int64_t>(choices.size()));
    ASSERT_EQ(instances.size(), choices.size());
    for (size_t k = 0; k < choices.size(); ++k) {
      const auto instance = static_cast<size_t>(instances[k]);
      ASSERT_EQ(mapped.slot[choices[k]], table.slot[instance])
          << "expert " << expert << " occurrence " << k << " of " << choices.size();
      ASSERT_EQ(mapped.rank[choices[k]], table.rank[instance]);
    }
  }
}

using InstanceMapTest = KernelTest;

TEST_F(InstanceMapTest, GivesEachInstanceItsQuotaInOrder) {
  // Expert 0: home (slot 1000) 2, replica (1001) 1. Expert 1: home only (1002).
  Table table;
  table.AddExpert({2, 1});
  table.AddExpert({3});
  const Mapped mapped = Map({.values = {0, 1, 1, 0, 0, 1}, .tokens = 3, .top_k = 2}, table);
  EXPECT_TRUE(mapped.status.ok()) << mapped.status;
  EXPECT_THAT(mapped.slot, ElementsAre(1000, 1002, 1002, 1000, 1001, 1002));
  EXPECT_THAT(mapped.rank, ElementsAre(0, 6, 6, 0, 3, 6));
}

TEST_F(InstanceMapTest, ServesBothInstancesOfAnExpertThatStandsInOneColumn) {
  // By position % 2, expert 0, always at an even position, would go to its home only.
  Table table;
  table.AddExpert({2, 2});
  table.AddExpert({2, 2});
  const Mapped mapped = Map({.values = {0, 1, 0, 1, 0, 1, 0, 1}, .tokens = 4, .top_k = 2}, table);
  EXPECT_THAT(mapped.slot, ElementsAre(1000, 1002, 1000, 1002, 1001, 1003, 1001, 1003));
}

TEST_F(InstanceMapTest, SharesInProportionWhenReplayDiffersFromThePlan) {
  // Planned 3 + 1; 8 came: floor(k * 4 / 8) is 0 0 1 1 2 2 3 3, below 3 goes home.
  Table table;
  table.AddExpert({3, 1});
  EXPECT_THAT(Map({.values = std::vector<int64_t>(8, 0), .tokens = 8}, table).slot,
              ElementsAre(1000, 1000, 1000, 1000, 1000, 1000, 1001, 1001));
  // 2 came: floor(k * 4 / 2) is 0 2.
  EXPECT_THAT(Map({.values = {0, 0}, .tokens = 2}, table).slot, ElementsAre(1000, 1000));
}

TEST_F(InstanceMapTest, SendsTokensThatWereNotPlannedHome) {
  Table table;
  table.AddExpert({0, 0, 0});
  EXPECT_THAT(Map({.values = {0, 0, 0}, .tokens = 3}, table).slot, Each(1000));
}

TEST_F(InstanceMapTest, GivesNothingToAnInstanceWithoutQuota) {
  Table table;
  table.AddExpert({0, 2, 0, 1});
  EXPECT_THAT(Map({.values = {0, 0, 0}, .tokens = 3}, table).slot, ElementsAre(1001, 1001, 1003));
}

TEST_F(InstanceMapTest, ReadsOneLayerInPlace) {
  // [tokens 2, layers 2, top_k 2], layer 0 of it: 0 1 | 1 0.
  Table table;
  table.AddExpert({1, 1});
  table.AddExpert({2});
  const Mapped mapped =
      Map({.values = {0, 1, 9, 9, 1, 0, 9, 9}, .tokens = 2, .top_k = 2, .stride = 4}, table);
  EXPECT_TRUE(mapped.status.ok()) << mapped.status;
  EXPECT_THAT(mapped.slot, ElementsAre(1000, 1002, 1002, 1001));
}

TEST_F(InstanceMapTest, KeepsTheRuleOnRandomTables) {
  std::mt19937_64 random(7);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    const int64_t experts = round % 10 == 0 ? 512 : draw(8, 128);
    Ids ids = {.type = kAllIdTypes[round % 6], .tokens = draw(0, 150), .top_k = draw(1, 16)};
    ids.stride = round % 4 == 0 ? ids.top_k * 3 : 0;
    ids.values =
        RandomIds(static_cast<size_t>(ids.tokens * std::max(ids.stride, ids.top_k)), ids.type,
                  {.experts = experts,
                   .not_routed = round % 3 * 0.1,
                   .invalid = round % 11 == 0 ? 0.02 : 0,
                   .one_expert = round % 13 == 0},
                  random);
    std::map<int64_t, int64_t> actual;
    for (int64_t t = 0; t < ids.tokens; ++t) {
      for (int64_t k = 0; k < ids.top_k; ++k) ++actual[ids.At(t, k)];
    }
    Table table;
    for (int64_t e = 0; e < experts; ++e) {
      std::vector<uint32_t> quotas(static_cast<size_t>(draw(1, round % 5 == 0 ? 72 : 4)), 0);
      if (round % 2 == 0) {  // as planned
        for (int64_t i = 0; i < actual[e]; ++i) {
          ++quotas[static_cast<size_t>(draw(0, static_cast<int64_t>(quotas.size()) - 1))];
        }
      } else {
        for (uint32_t& q : quotas) q = static_cast<uint32_t>(draw(0, 40));
      }
      table.AddExpert(quotas);
    }
    ASSERT_TRUE(CheckInstanceTable(table.View()).ok());
    ExpectRuleHolds(ids, table);
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

TEST_F(InstanceMapTest, KeepsTheRuleForTheLargestQuotas) {
  Table table;
  table.AddExpert({0x7fffffffu, 0x80000000u});  // sums to 2^32 - 1
  table.AddExpert({1, 0xfffffff0u, 3});
  std::mt19937_64 random(8);
  const Ids ids = {.values = RandomIds(5000, IdType::kI32, {.experts = 2}, random), .tokens = 5000};
  ExpectRuleHolds(ids, table);
}

TEST_F(InstanceMapTest, AcceptsZeroTokens) {
  Table table;
  table.AddExpert({1});
  const Mapped mapped = Map({.tokens = 0, .top_k = 4}, table);
  EXPECT_TRUE(mapped.status.ok()) << mapped.status;
  EXPECT_EQ(mapped.report.invalid, 0u);
}

TEST_F(InstanceMapTest, AsksForAWorkspaceThatIsLargeEnough) {
  Table table;
  table.AddExpert({1});
  DeviceArray<int32_t> memory(64);
  DeviceArray<IdReport> report(1);
  const absl::Status status = MapToInstances(TestExecutor(), {.data = memory.data(), .tokens = 1},
                                             table.View(), memory.data() + 1, memory.data() + 2,
                                             report.data(), Workspace{memory.data(), 4});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("workspace has 4 bytes, expected "));
}

TEST(CheckInstanceTableTest, NamesTheExpertAtFault) {
  Table table;
  table.AddExpert({1, 2});
  table.AddExpert({3, 4});
  EXPECT_TRUE(CheckInstanceTable(table.View()).ok());
  const auto message = [](const Table& bad) {
    return std::string(CheckInstanceTable(bad.View()).message());
  };
  Table bad = table;
  bad.offsets[0] = 1;
  EXPECT_THAT(message(bad), HasSubstr("table.offsets[0] is 1, expected 0"));
  bad = table;
  bad.offsets[2] = 2;
  EXPECT_THAT(message(bad), HasSubstr("table.offsets[2] is 2, expected more than 2"));
  bad = table;
  bad.slot[3] = -1;
  EXPECT_THAT(message(bad), HasSubstr("instance 1 of expert 1 has rank 1 and slot -1"));
  bad = table;
  bad.quota[2] = 0xfffffffdu;
  EXPECT_THAT(message(bad), HasSubstr("table.quota of expert 1 sums to 4294967297"));
}

}  // namespace
}  // namespace relibra::kernel_test
