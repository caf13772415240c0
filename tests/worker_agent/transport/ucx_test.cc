#include "worker_agent/transport/ucx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/worker_agent/transport/peer_processes.h"
#include "worker_agent/transport/collectives.h"

namespace relibra::transport {
namespace {

using ::testing::HasSubstr;

absl::Time In(int seconds) { return absl::Now() + absl::Seconds(seconds); }

// ---- What the children do. Each returns its exit status: 0 when all was as it should be. ----

int Fail(const PeerArguments& arguments, const std::string& what) {
  std::fprintf(stderr, "rank %d, %s: %s\n", arguments.rank, arguments.scenario.c_str(),
               what.c_str());
  return 1;
}

// Every rank reads 5 MiB of its neighbour, who sits in a read of its control socket meanwhile.
int GetScenario(const PeerArguments& arguments, Transport& transport) {
  constexpr size_t kBytes = 5 << 20;
  std::string memory(kBytes, static_cast<char>('a' + arguments.rank));
  memory[kBytes - 1] = '!';
  auto region = transport.Register(memory.data(), kBytes);
  if (!region.ok()) return Fail(arguments, region.status().ToString());
  auto handles = AllGatherBytes(transport, (*region)->ExportHandle(), In(30));
  if (!handles.ok()) return Fail(arguments, handles.status().ToString());

  const int next = (arguments.rank + 1) % arguments.size;
  if (arguments.rank == 0) {
    auto remote = transport.Import(next, (*handles)[next]);
    if (!remote.ok()) return Fail(arguments, remote.status().ToString());
    std::string buffer(kBytes, '-');
    std::vector<Operation> gets;
    for (size_t at = 0; at < kBytes; at += 1 << 20) {
      gets.push_back(transport.Get(**remote, at, buffer.data() + at, 1 << 20));
    }
    const absl::Status status = transport.Wait(gets, In(30));
    if (!status.ok()) return Fail(arguments, status.ToString());
    std::string expected(kBytes, static_cast<char>('a' + next));
    expected[kBytes - 1] = '!';
    if (buffer != expected) return Fail(arguments, "the bytes differ");
    TellParent();
  }
  WaitForParent();
  const absl::Status status = transport.Barrier(In(30));
  return status.ok() ? 0 : Fail(arguments, status.ToString());
}

// Words, and messages from 0 bytes to beyond every eager limit, among all pairs.
int MessageScenario(const PeerArguments& arguments, Transport& transport) {
  const uint64_t word = 10 + arguments.rank;
  auto sum = transport.AllReduce({&word, 1}, ReduceOp::kSum, In(30));
  if (!sum.ok()) return Fail(arguments, sum.status().ToString());
  uint64_t expected_sum = 0;
  for (int r = 0; r < arguments.size; ++r) expected_sum += 10 + r;
  if (sum->at(0) != expected_sum) return Fail(arguments, "the sum is wrong");

  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, size_t{3} << 20}) {
    std::vector<std::string> incoming(arguments.size, std::string(bytes + 1, '-'));
    std::string outgoing(bytes, static_cast<char>('A' + arguments.rank));
    std::vector<Operation> operations;
    for (int r = 0; r < arguments.size; ++r) {
      operations.push_back(transport.Receive(r, {40, bytes}, incoming[r].data(), bytes + 1));
      operations.push_back(transport.Send(r, {40, bytes}, outgoing.data(), bytes));
    }
    const absl::Status status = transport.Wait(operations, In(30));
    if (!status.ok()) return Fail(arguments, status.ToString());
    for (int r = 0; r < arguments.size; ++r) {
      if (operations[2 * r].bytes() != bytes) return Fail(arguments, "a length is wrong");
      if (incoming[r] != std::string(bytes, static_cast<char>('A' + r)) + "-") {
        return Fail(arguments, "a message is wrong");
      }
    }
  }
  const absl::Status status = transport.Barrier(In(30));
  return status.ok() ? 0 : Fail(arguments, status.ToString());
}

// Rank 1 is killed while the others wait for its message; each must get an error by its deadline.
int DeathScenario(const PeerArguments& arguments, Transport& transport) {
  if (absl::Status status = transport.Barrier(In(30)); !status.ok()) {
    return Fail(arguments, status.ToString());
  }
  char buffer[8];
  const Operation receive = transport.Receive(1, {40, 1}, buffer, sizeof(buffer));
  TellParent();
  const int patience = arguments.peer_error_handling ? 40 : 2;
  const absl::Status status = transport.Wait({&receive, 1}, In(patience));
  if (status.ok()) return Fail(arguments, "got a message from the dead");
  const bool told = status.code() == absl::StatusCode::kUnavailable;
  if (arguments.peer_error_handling && !told) return Fail(arguments, status.ToString());
  const absl::Status again = transport.Barrier(In(2));
  if (again.ok()) return Fail(arguments, "a barrier with the dead was passed");
  return 0;
}

// Rank 1 is killed while rank 0 reads its memory over and over.
int GetDeathScenario(const PeerArguments& arguments, Transport& transport) {
  constexpr size_t kBytes = 1 << 20;
  std::string memory(kBytes, 'm');
  auto region = transport.Register(memory.data(), kBytes);
  if (!region.ok()) return Fail(arguments, region.status().ToString());
  auto handles = AllGatherBytes(transport, (*region)->ExportHandle(), In(30));
  if (!handles.ok()) return Fail(arguments, handles.status().ToString());
  auto remote = transport.Import(1, (*handles)[1]);
  if (!remote.ok()) return Fail(arguments, remote.status().ToString());
  if (arguments.rank != 0) {
    WaitForParent();
    return 0;
  }
  std::string buffer(kBytes, '-');
  TellParent();
  for (const absl::Time end = In(40); absl::Now() < end;) {
    const Operation get = transport.Get(**remote, 0, buffer.data(), kBytes);
    if (!transport.Wait({&get, 1}, In(3)).ok()) return 0;
  }
  return Fail(arguments, "read the memory of the dead for 40 seconds");
}

int RunPeer(const PeerArguments& arguments) {
  auto transport = CreateUcxTransport({.rank = arguments.rank,
                                       .size = arguments.size,
                                       .transports = arguments.transports,
                                       .one_sided = OneSided::kOn,
                                       .peer_error_handling = arguments.peer_error_handling,
                                       .close_timeout = absl::Seconds(2)});
  if (!transport.ok()) return Fail(arguments, transport.status().ToString());
  const std::vector<std::string> addresses =
      ExchangeAddresses(arguments, (*transport)->LocalAddress());
  const absl::Status connected = (*transport)->Connect(addresses, In(30));
  if (!connected.ok()) return Fail(arguments, connected.ToString());
  if (arguments.scenario == "get") return GetScenario(arguments, **transport);
  if (arguments.scenario == "message") return MessageScenario(arguments, **transport);
  if (arguments.scenario == "death") return DeathScenario(arguments, **transport);
  if (arguments.scenario == "get-death") return GetDeathScenario(arguments, **transport);
  return Fail(arguments, "no such scenario");
}

// ---- The tests. ----

class UcxTransport : public ::testing::TestWithParam<const char*> {};

TEST_P(UcxTransport, GetsAreServedWhileTheirTargetComputes) {
  PeerProcesses peers({.scenario = "get", .transports = GetParam(), .size = 2});
  peers.PassAddresses();
  peers.AwaitChild(0);
  for (int rank : {0, 1}) peers.Release(rank);
  for (int rank : {0, 1}) EXPECT_EQ(peers.Join(rank), 0);
}

TEST_P(UcxTransport, MessagesAndReductionsWorkAmongAllRanks) {
  PeerProcesses peers({.scenario = "message", .transports = GetParam(), .size = 4});
  peers.PassAddresses();
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(peers.Join(rank), 0);
}

TEST_P(UcxTransport, AKilledPeerBecomesAnErrorOfThoseThatWaitForIt) {
  PeerProcesses peers({.scenario = "death", .transports = GetParam(), .size = 3});
  peers.PassAddresses();
  for (int rank = 0; rank < 3; ++rank) peers.AwaitChild(rank);
  peers.Kill(1);
  for (int rank : {0, 2}) EXPECT_EQ(peers.Join(rank), 0);
}

TEST_P(UcxTransport, WithoutErrorHandlingAKilledPeerEndsWaitsAtTheirDeadline) {
  PeerProcesses peers(
      {.scenario = "death", .transports = GetParam(), .size = 3, .peer_error_handling = false});
  peers.PassAddresses();
  for (int rank = 0; rank < 3; ++rank) peers.AwaitChild(rank);
  peers.Kill(1);
  for (int rank : {0, 2}) EXPECT_EQ(peers.Join(rank), 0);
}

TEST_P(UcxTransport, AGetFromAKilledPeerEndsWithAnError) {
  PeerProcesses peers({.scenario = "get-death", .transports = GetParam(), .size = 2});
  peers.PassAddresses();
  peers.AwaitChild(0);
  peers.Kill(1);
  EXPECT_EQ(peers.Join(0), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Transports, UcxTransport, ::testing::Values("tcp,self", "posix,cma,self"),
    [](const auto& info) {
      return std::string(info.param).substr(0, std::string(info.param).find(','));
    });

TEST(UcxTransportInput, AnAddressOfAnotherTransportIsRefused) {
  auto transport = CreateUcxTransport({.rank = 0, .size = 2, .transports = "tcp,self"});
  ASSERT_TRUE(transport.ok()) << transport.status();
  const std::string mine = (*transport)->LocalAddress();
  const absl::Status status = (*transport)->Connect({mine, "in-process 1"}, In(5));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
}

TEST(UcxTransportInput, AnAddressOfAnotherUcxVersionIsRefusedByName) {
  auto transport = CreateUcxTransport({.rank = 0, .size = 2, .transports = "tcp,self"});
  ASSERT_TRUE(transport.ok()) << transport.status();
  const absl::Status status =
      (*transport)->Connect({(*transport)->LocalAddress(), "relibra-ucx 9.9 whatever"}, In(5));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("relibra-ucx 9.9"));
}

TEST(UcxTransportInput, GetsAreOneSidedOnlyWhereTheHardwareReadsMemory) {
  const auto one_sided = [](const std::string& transports, OneSided choice) {
    auto transport =
        CreateUcxTransport({.rank = 0, .size = 1, .transports = transports, .one_sided = choice});
    EXPECT_TRUE(transport.ok()) << transport.status();
    return (*transport)->capabilities().one_sided_get;
  };
  EXPECT_FALSE(one_sided("tcp,self", OneSided::kAuto));
  EXPECT_FALSE(one_sided("tcp,posix,cma,self", OneSided::kAuto));
  EXPECT_TRUE(one_sided("posix,cma,self", OneSided::kAuto));
  EXPECT_TRUE(one_sided("tcp,self", OneSided::kOn));
  EXPECT_FALSE(one_sided("posix,cma,self", OneSided::kOff));
}

TEST(UcxTransportInput, TransportsThatUcxDoesNotKnowAreAnError) {
  EXPECT_FALSE(CreateUcxTransport({.rank = 0, .size = 1, .transports = "pigeon"}).ok());
}

TEST(UcxTransportInput, ATransferBeforeConnectIsAnError) {
  auto transport = CreateUcxTransport({.rank = 0, .size = 2, .transports = "tcp,self"});
  ASSERT_TRUE(transport.ok()) << transport.status();
  const Operation send = (*transport)->Send(1, {40, 0}, "x", 1);
  EXPECT_EQ((*transport)->Wait({&send, 1}, In(1)).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace relibra::transport

// UCX keeps a few bytes of endpoints whose peer has died; leak checks of sanitizer builds ask here.
extern "C" const char* __lsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "leak:libucs.so\nleak:libucp.so\nleak:libuct.so\n";
}

int main(int argc, char** argv) {
  relibra::transport::PeerArguments arguments;
  if (relibra::transport::IsPeer(argc, argv, arguments)) {
    return relibra::transport::RunPeer(arguments);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
