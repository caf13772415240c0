#include "planner_service/server/step_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/planner_service/server/test_planner.h"

namespace relibra::server {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 2;

// One random sequence's true routes, [token][layer][choice], and what a step should keep of the
// tokens that came.
struct TrueSequence {
  std::vector<std::vector<uint8_t>> rows;
  std::vector<bool> came;
};

TrueSequence RandomSequence(std::mt19937& random) {
  TrueSequence sequence;
  const size_t tokens = 1 + random() % 40;
  for (size_t t = 0; t < tokens; ++t) {
    std::vector<uint8_t>& row = sequence.rows.emplace_back();
    for (int layer = 0; layer < 2; ++layer) {
      const uint8_t first = random() % 8;
      row.push_back(first);
      row.push_back((first + 1 + random() % 7) % 8);
    }
  }
  sequence.came.resize(tokens);
  return sequence;
}

v1::RoutingRecord Piece(const TrueSequence& sequence, const std::string& id, size_t begin,
                        size_t end) {
  std::vector<uint8_t> ids;
  for (size_t t = begin; t < end; ++t) {
    ids.insert(ids.end(), sequence.rows[t].begin(), sequence.rows[t].end());
  }
  return Record(id, begin, ids);
}

class StepRecordsTest : public testing::Test {
 protected:
  StepRecordsTest()
      : job_(*MakeJob(SmallJob("demo"))),
        account_(MemoryAccount::Create("step", "--max-step-bytes", kNoLimit, nullptr)),
        records_(job_, account_),
        counter_(job_) {}

  absl::StatusOr<AddedRecords> Add(const std::vector<v1::RoutingRecord>& messages) {
    std::vector<CountedRecord> counted;
    counted.reserve(messages.size());
    for (const v1::RoutingRecord& message : messages) counted.push_back(*counter_.Count(message));
    return records_.Add(counted);
  }

  // Compares what is kept with a count over the rows that came.
  void ExpectKept(const std::vector<TrueSequence>& sequences) {
    ASSERT_TRUE(records_
                    .ReadAndSeal("nobody",
                                 [&](const StepRecords::SequenceMap& kept) {
                                   for (size_t q = 0; q < sequences.size(); ++q) {
                                     ExpectSequence(sequences[q], kept, "q" + std::to_string(q));
                                   }
                                   return absl::OkStatus();
                                 })
                    .ok());
    records_.Unseal();
  }

  static void ExpectSequence(const TrueSequence& sequence, const StepRecords::SequenceMap& kept,
                             const std::string& id) {
    std::vector<uint32_t> counts(16);
    uint64_t covered = 0;
    uint64_t end = 0;
    for (size_t t = 0; t < sequence.rows.size(); ++t) {
      if (!sequence.came[t]) continue;
      ++covered;
      end = t + 1;
      for (int i = 0; i < 4; ++i) ++counts[(i / 2) * 8 + sequence.rows[t][i]];
    }
    const auto found = kept.find(id);
    if (found == kept.end()) {
      EXPECT_EQ(covered, 0);
      return;
    }
    EXPECT_EQ(found->second.counts, counts) << id;
    EXPECT_EQ(found->second.covered(), covered);
    EXPECT_EQ(found->second.expected(), end);
  }

  std::shared_ptr<const Job> job_;
  std::shared_ptr<MemoryAccount> account_;
  StepRecords records_;
  RecordCounter counter_;
};

TEST_F(StepRecordsTest, CountEveryRowOnceHoweverPiecesOverlapAndRepeat) {
  std::mt19937 random(3);
  std::vector<TrueSequence> sequences(20);
  for (TrueSequence& sequence : sequences) sequence = RandomSequence(random);
  for (int round = 0; round < 400; ++round) {
    std::vector<v1::RoutingRecord> messages;
    for (size_t i = 0; i <= random() % 3; ++i) {
      const size_t q = random() % sequences.size();
      TrueSequence& sequence = sequences[q];
      const size_t begin = random() % sequence.rows.size();
      const size_t end = begin + 1 + random() % (sequence.rows.size() - begin);
      messages.push_back(Piece(sequence, "q" + std::to_string(q), begin, end));
      std::fill(sequence.came.begin() + begin, sequence.came.begin() + end, true);
    }
    ASSERT_TRUE(Add(messages).ok());
    if (round % 40 == 0) ExpectKept(sequences);
  }
  ExpectKept(sequences);
}

TEST_F(StepRecordsTest, KeepNothingOfAMessageThatHoldsABadRecord) {
  std::mt19937 random(4);
  std::vector<TrueSequence> sequences(10);
  for (TrueSequence& sequence : sequences) sequence = RandomSequence(random);
  // The first token of every sequence is known, so that one that differs can be told.
  for (size_t q = 0; q < sequences.size(); ++q) {
    ASSERT_TRUE(Add({Piece(sequences[q], "q" + std::to_string(q), 0, 1)}).ok());
    sequences[q].came[0] = true;
  }
  for (int round = 0; round < 200; ++round) {
    std::vector<v1::RoutingRecord> messages;
    for (int i = 0; i < 3; ++i) {
      const size_t q = random() % sequences.size();
      const size_t begin = random() % sequences[q].rows.size();
      messages.push_back(
          Piece(sequences[q], "q" + std::to_string(q), begin, sequences[q].rows.size()));
    }
    TrueSequence new_one = RandomSequence(random);
    messages.push_back(Piece(new_one, "new", 0, new_one.rows.size()));
    const size_t wrong = random() % sequences.size();
    TrueSequence other = sequences[wrong];
    other.rows[0] = {7, 6, 5, 4};
    if (other.rows[0] == sequences[wrong].rows[0]) continue;
    messages.push_back(Piece(other, "q" + std::to_string(wrong), 0, 1));
    const absl::Status status = Add(messages).status();
    ASSERT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
  ExpectKept(sequences);
  EXPECT_EQ(records_.totals().sequences, sequences.size());
  EXPECT_EQ(records_.totals().tokens, sequences.size());
}

TEST_F(StepRecordsTest, GiveTheirMemoryBack) {
  {
    StepRecords records(job_, account_);
    std::mt19937 random(5);
    const TrueSequence sequence = RandomSequence(random);
    const v1::RoutingRecord message = Piece(sequence, "q", 0, sequence.rows.size());
    const CountedRecord counted = *counter_.Count(message);
    ASSERT_TRUE(records.Add({&counted, 1}).ok());
    EXPECT_GT(account_->used(), 0);
  }
  EXPECT_EQ(account_->used(), 0);
}

}  // namespace
}  // namespace relibra::server
