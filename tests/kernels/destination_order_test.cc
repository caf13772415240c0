#include "kernels/destination_order.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/kernels/kernel_test_device.h"

namespace relibra::kernel_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

struct Ordered {
  absl::Status status;
  std::vector<int64_t> counts;
  std::vector<int64_t> offsets;
  std::vector<int32_t> row_of_choice;
  std::vector<int32_t> choice_of_row;
  IdReport report;
};

Ordered Order(const std::vector<int32_t>& destination, int64_t destinations,
              bool with_inverse = true) {
  DeviceArray<int32_t> in(destination);
  DeviceArray<int64_t> counts(static_cast<size_t>(destinations));
  DeviceArray<int64_t> offsets(static_cast<size_t>(destinations) + 1);
  DeviceArray<int32_t> row_of_choice(destination.size());
  DeviceArray<int32_t> choice_of_row(destination.size());
  DeviceArray<IdReport> report(1);
  const auto choices = static_cast<int64_t>(destination.size());
  const absl::StatusOr<size_t> bytes =
      BuildDestinationOrderWorkspaceBytes(TestExecutor().device, choices, destinations);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  DeviceArray<uint8_t> workspace(bytes.value_or(0));
  Ordered result;
  result.status =
      BuildDestinationOrder(TestExecutor(), in.data(), choices, destinations,
                            {.counts = counts.data(),
                             .offsets = offsets.data(),
                             .row_of_choice = row_of_choice.data(),
                             .choice_of_row = with_inverse ? choice_of_row.data() : nullptr},
                            report.data(), {workspace.data(), workspace.size()});
  workspace.Read();  // checks its guards
  result.counts = counts.Read();
  result.offsets = offsets.Read();
  result.row_of_choice = row_of_choice.Read();
  result.choice_of_row = choice_of_row.Read();
  result.report = report.ReadOne();
  return result;
}

using DestinationOrderTest = KernelTest;

TEST_F(DestinationOrderTest, GroupsChoicesByDestinationAndKeepsTheirOrder) {
  const Ordered ordered = Order({2, 0, 2, -1, 0, 2}, 4);
  EXPECT_TRUE(ordered.status.ok()) << ordered.status;
  EXPECT_THAT(ordered.counts, ElementsAre(2, 0, 3, 0));
  EXPECT_THAT(ordered.offsets, ElementsAre(0, 2, 2, 5, 5));
  EXPECT_THAT(ordered.row_of_choice, ElementsAre(2, 0, 3, -1, 1, 4));
  EXPECT_THAT(ordered.choice_of_row, ElementsAre(1, 4, 0, 2, 5, -1));
}

TEST_F(DestinationOrderTest, EqualsAStableSortOnRandomInput) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 200; ++round) {
    const int64_t destinations = std::uniform_int_distribution<int64_t>(1, 600)(random);
    const size_t choices = std::uniform_int_distribution<size_t>(0, 2500)(random);
    std::uniform_int_distribution<int32_t> draw(
        round % 3 == 0 ? -static_cast<int32_t>(destinations) / 4 : 0,
        static_cast<int32_t>(round % 17 == 0 ? destinations + 3 : destinations - 1));
    std::vector<int32_t> destination(choices);
    for (int32_t& d : destination) d = draw(random);
    const Ordered ordered = Order(destination, destinations);

    std::vector<int32_t> sorted;  // routed choices by destination
    uint64_t invalid = 0;
    for (size_t c = 0; c < choices; ++c) {
      if (destination[c] >= 0 && destination[c] < destinations) {
        sorted.push_back(static_cast<int32_t>(c));
      }
      if (destination[c] >= destinations && invalid++ == 0) {
        EXPECT_EQ(ordered.report.first_position, c);
      }
    }
    EXPECT_EQ(ordered.report.invalid, invalid);
    EXPECT_EQ(ordered.status.ok(), !OnCpu() || invalid == 0) << ordered.status;
    std::stable_sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) {
      return destination[static_cast<size_t>(a)] < destination[static_cast<size_t>(b)];
    });
    std::vector<int32_t> row_of_choice(choices, -1);
    std::vector<int64_t> counts(static_cast<size_t>(destinations), 0);
    for (size_t row = 0; row < sorted.size(); ++row) {
      const auto choice = static_cast<size_t>(sorted[row]);
      row_of_choice[choice] = static_cast<int32_t>(row);
      ++counts[static_cast<size_t>(destination[choice])];
    }
    sorted.resize(choices, -1);
    std::vector<int64_t> offsets(static_cast<size_t>(destinations) + 1, 0);
    std::partial_sum(counts.begin(), counts.end(), offsets.begin() + 1);
    ASSERT_EQ(ordered.row_of_choice, row_of_choice);
    ASSERT_EQ(ordered.choice_of_row, sorted);
    ASSERT_EQ(ordered.counts, counts);
    ASSERT_EQ(ordered.offsets, offsets);
  }
}

TEST_F(DestinationOrderTest, WritesAllCountsForZeroChoices) {
  const Ordered ordered = Order({}, 5);
  EXPECT_TRUE(ordered.status.ok()) << ordered.status;
  EXPECT_THAT(ordered.counts, Each(0));
  EXPECT_THAT(ordered.offsets, Each(0));
}

TEST_F(DestinationOrderTest, TakesAllChoicesToOneDestination) {
  const Ordered ordered = Order(std::vector<int32_t>(1000, 7), 8);
  EXPECT_EQ(ordered.counts[7], 1000);
  for (int32_t i = 0; i < 1000; ++i) ASSERT_EQ(ordered.row_of_choice[static_cast<size_t>(i)], i);
}

TEST_F(DestinationOrderTest, WritesNoInverseUnlessAskedTo) {
  const Ordered ordered = Order({1, 0}, 2, /*with_inverse=*/false);
  EXPECT_THAT(ordered.row_of_choice, ElementsAre(1, 0));
  EXPECT_THAT(ordered.choice_of_row, Each(static_cast<int32_t>(0xa5a5a5a5)));
}

TEST_F(DestinationOrderTest, NamesTheArgumentAtFault) {
  DeviceArray<int32_t> ints(16);
  DeviceArray<int64_t> longs(16);
  DeviceArray<IdReport> report(1);
  const DestinationOrder order = {.counts = longs.data(),
                                  .offsets = longs.data() + 8,
                                  .row_of_choice = ints.data(),
                                  .choice_of_row = nullptr};
  const auto message = [&](int64_t choices, int64_t destinations, const DestinationOrder& out) {
    return std::string(BuildDestinationOrder(TestExecutor(), ints.data(), choices, destinations,
                                             out, report.data(), Workspace{})
                           .message());
  };
  EXPECT_THAT(message(-1, 4, order), HasSubstr("choices is -1"));
  EXPECT_THAT(message(int64_t{1} << 31, 4, order), HasSubstr("choices is 2147483648"));
  EXPECT_THAT(message(2, 0, order), HasSubstr("destinations is 0"));
  EXPECT_THAT(message(2, 4, {}), HasSubstr("order.counts is null"));
  EXPECT_THAT(message(2, 4, order), HasSubstr("workspace has 0 bytes"));
}

}  // namespace
}  // namespace relibra::kernel_test
