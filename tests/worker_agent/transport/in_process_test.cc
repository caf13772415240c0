#include "worker_agent/transport/in_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "worker_agent/transport/collectives.h"

namespace relibra::transport {
namespace {

using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Milliseconds(100); }
absl::Time Late() { return absl::Now() + absl::Seconds(60); }

// Runs body(transport) on a thread for every rank.
void OnEveryRank(InProcessGroup& group, int size, absl::FunctionRef<void(Transport&)> body) {
  std::vector<std::unique_ptr<Transport>> transports;
  transports.reserve(size);
  for (int rank = 0; rank < size; ++rank) transports.push_back(group.Attach(rank));
  std::vector<std::thread> threads;
  threads.reserve(size);
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { body(*transports[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(InProcessTransport, AllGatherBringsEveryRanksWordsInOrderOfRanks) {
  for (int size : {1, 2, 3, 5, 8, 13}) {
    auto group = InProcessGroup::Create(size);
    OnEveryRank(*group, size, [&](Transport& transport) {
      const uint64_t mine[] = {uint64_t(transport.rank()), uint64_t(100 + transport.rank())};
      auto all = transport.AllGather(mine, Late());
      ASSERT_TRUE(all.ok()) << all.status();
      ASSERT_EQ(all->size(), 2u * size);
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ((*all)[2 * r], uint64_t(r));
        EXPECT_EQ((*all)[2 * r + 1], uint64_t(100 + r));
      }
    });
  }
}

TEST(InProcessTransport, AllReduceTakesMinMaxAndSumOverTheRanks) {
  auto group = InProcessGroup::Create(4);
  OnEveryRank(*group, 4, [&](Transport& transport) {
    const uint64_t mine[] = {uint64_t(transport.rank() + 1)};  // 1, 2, 3, 4
    EXPECT_EQ(transport.AllReduce(mine, ReduceOp::kMin, Late())->at(0), 1u);
    EXPECT_EQ(transport.AllReduce(mine, ReduceOp::kMax, Late())->at(0), 4u);
    EXPECT_EQ(transport.AllReduce(mine, ReduceOp::kSum, Late())->at(0), 10u);
  });
}

TEST(InProcessTransport, BytesOfAnyLengthAreGathered) {
  auto group = InProcessGroup::Create(5);
  OnEveryRank(*group, 5, [&](Transport& transport) {
    auto all = AllGatherBytes(transport, std::string(transport.rank() * 1000, 'a'), Late());
    ASSERT_TRUE(all.ok()) << all.status();
    for (int r = 0; r < 5; ++r) EXPECT_EQ((*all)[r], std::string(r * 1000, 'a'));
  });
}

TEST(InProcessTransport, GetReadsAPeersRegionAtTheOffset) {
  auto group = InProcessGroup::Create(2);
  auto here = group->Attach(0);
  auto there = group->Attach(1);
  std::string memory = "0123456789";
  auto region = there->Register(memory.data(), memory.size());
  auto remote = here->Import(1, (*region)->ExportHandle());
  ASSERT_TRUE(remote.ok()) << remote.status();
  std::string buffer(3, ' ');
  const Operation get = here->Get(**remote, 4, buffer.data(), 3);
  ASSERT_TRUE(here->Wait({&get, 1}, Late()).ok());
  EXPECT_EQ(buffer, "456");
}

TEST(InProcessTransport, GetBeyondTheRegionIsRefused) {
  auto group = InProcessGroup::Create(2);
  auto here = group->Attach(0);
  auto there = group->Attach(1);
  std::string memory = "0123456789";
  auto region = there->Register(memory.data(), memory.size());
  auto remote = here->Import(1, (*region)->ExportHandle());
  char buffer[8];
  const Operation get = here->Get(**remote, 8, buffer, 3);
  EXPECT_EQ(here->Wait({&get, 1}, Late()).code(), absl::StatusCode::kOutOfRange);
}

TEST(InProcessTransport, MessagesOfOneTagArriveInOrderOfSending) {
  auto group = InProcessGroup::Create(2);
  auto here = group->Attach(0);
  auto there = group->Attach(1);
  there->Send(0, {40, 7}, "first", 5);
  there->Send(0, {40, 8}, "other", 5);
  there->Send(0, {40, 7}, "again", 5);
  std::string one(5, ' ');
  std::string two(5, ' ');
  const Operation receives[] = {here->Receive(1, {40, 7}, one.data(), 5),
                                here->Receive(1, {40, 7}, two.data(), 5)};
  ASSERT_TRUE(here->Wait(receives, Late()).ok());
  EXPECT_EQ(one, "first");
  EXPECT_EQ(two, "again");
}

TEST(InProcessTransport, AMessageLongerThanItsBufferIsAnErrorOfTheReceiver) {
  auto group = InProcessGroup::Create(2);
  auto here = group->Attach(0);
  auto there = group->Attach(1);
  there->Send(0, {40, 7}, "too long", 8);
  char buffer[4];
  const Operation receive = here->Receive(1, {40, 7}, buffer, sizeof(buffer));
  EXPECT_EQ(here->Wait({&receive, 1}, Late()).code(), absl::StatusCode::kInvalidArgument);
}

TEST(InProcessTransport, AWaitEndsAtItsDeadlineAndNamesThePeer) {
  auto group = InProcessGroup::Create(3);
  auto here = group->Attach(0);
  char buffer[4];
  const Operation receive = here->Receive(2, {40, 7}, buffer, sizeof(buffer));
  const absl::Status status = here->Wait({&receive, 1}, Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2"));
}

TEST(InProcessTransport, ADroppedMessageNeverArrives) {
  auto group = InProcessGroup::Create(2, {.faults = {{.kind = Fault::Kind::kDrop,
                                                      .rank = 1,
                                                      .operation = Fault::Operation::kSend,
                                                      .at = 0}}});
  auto here = group->Attach(0);
  auto there = group->Attach(1);
  there->Send(0, {40, 7}, "lost", 4);
  there->Send(0, {40, 7}, "kept", 4);
  std::string buffer(4, ' ');
  const Operation receive = here->Receive(1, {40, 7}, buffer.data(), 4);
  ASSERT_TRUE(here->Wait({&receive, 1}, Late()).ok());
  EXPECT_EQ(buffer, "kept");
  EXPECT_EQ(group->faults_injected(), 1);
}

TEST(InProcessTransport, ADelayedMessageArrivesInItsOrder) {
  auto group = InProcessGroup::Create(2, {.faults = {{.kind = Fault::Kind::kDelay,
                                                      .rank = 1,
                                                      .operation = Fault::Operation::kSend,
                                                      .at = 0,
                                                      .delay = absl::Milliseconds(20)}}});
  auto here = group->Attach(0);
  auto there = group->Attach(1);
  there->Send(0, {40, 7}, "late", 4);
  there->Send(0, {40, 7}, "next", 4);
  std::string one(4, ' ');
  std::string two(4, ' ');
  const Operation receives[] = {here->Receive(1, {40, 7}, one.data(), 4),
                                here->Receive(1, {40, 7}, two.data(), 4)};
  ASSERT_TRUE(here->Wait(receives, Late()).ok());
  EXPECT_EQ(one, "late");
  EXPECT_EQ(two, "next");
}

TEST(InProcessTransport, ACorruptedGetDiffersFromItsSourceInOneBit) {
  auto group = InProcessGroup::Create(2, {.faults = {{.kind = Fault::Kind::kCorrupt,
                                                      .rank = 0,
                                                      .operation = Fault::Operation::kGet,
                                                      .at = 0}}});
  auto here = group->Attach(0);
  auto there = group->Attach(1);
  std::string memory(100, '\0');
  auto region = there->Register(memory.data(), memory.size());
  auto remote = here->Import(1, (*region)->ExportHandle());
  std::string buffer(100, 'x');
  const Operation get = here->Get(**remote, 0, buffer.data(), 100);
  ASSERT_TRUE(here->Wait({&get, 1}, Late()).ok());
  int different_bits = 0;
  for (char c : buffer) different_bits += __builtin_popcount(static_cast<unsigned char>(c));
  EXPECT_EQ(different_bits, 1);
}

TEST(InProcessTransport, ADeathEndsEveryWaitForTheDeadRank) {
  auto group =
      InProcessGroup::Create(3, {.faults = {{.kind = Fault::Kind::kKill, .rank = 1, .at = 2}}});
  OnEveryRank(*group, 3, [&](Transport& transport) {
    absl::Status status;
    for (int i = 0; i < 10 && status.ok(); ++i) status = transport.Barrier(Late());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    if (transport.rank() != 1) return;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
  });
}

TEST(InProcessTransport, AnUndetectedDeathEndsWaitsAtTheirDeadline) {
  auto group = InProcessGroup::Create(3, {.detects_peer_death = false});
  group->Kill(1);
  OnEveryRank(*group, 3, [&](Transport& transport) {
    const absl::Status status = transport.Barrier(Soon());
    EXPECT_EQ(status.code(), transport.rank() == 1 ? absl::StatusCode::kUnavailable
                                                   : absl::StatusCode::kDeadlineExceeded)
        << status;
  });
}

TEST(InProcessTransport, HandlesAndAddressesThatAreNotItsOwnAreRefused) {
  auto group = InProcessGroup::Create(2);
  auto here = group->Attach(0);
  EXPECT_EQ(here->Import(1, "nonsense").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(here->Connect({"in-process 0"}, Late()).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace relibra::transport
