#include "planner_service/trace/npz.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "planner_service/trace/file_bytes.h"

namespace relibra {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kPlenty = uint64_t{1} << 30;

std::string DataBytes(const std::string& file) {
  return *ReadFileBytes(std::string(RELIBRA_SOURCE_DIR) + "/tests/planner_service/trace/data/" +
                        file);
}

TEST(Npz, ArraysOfNumPysArchivesAreFoundByName) {
  absl::StatusOr<NpzArchive> archive = ReadNpz(DataBytes("raw.npz"), "raw.npz", kPlenty);
  ASSERT_TRUE(archive.ok()) << archive.status();
  EXPECT_THAT(archive->names(), ElementsAre("comment", "num_experts", "routed_experts",
                                            "token_micro_batch", "token_rank"));
  const NpyArray* ids = archive->Find("routed_experts");
  ASSERT_NE(ids, nullptr);
  EXPECT_THAT(ids->shape, ElementsAre(5, 2, 2));
  EXPECT_EQ(DtypeName(*ids), "int32");
  EXPECT_THAT(archive->Find("num_experts")->shape, ElementsAre());
  EXPECT_EQ(archive->Find("nothing"), nullptr);
}

TEST(Npz, AZipBombIsRefusedByItsClaim) {
  const std::string bytes = DataBytes("zeros.npz");
  EXPECT_TRUE(ReadNpz(bytes, "z.npz", (64 << 20) + 200).ok());
  const absl::Status status = ReadNpz(bytes, "z.npz", 64 << 20).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "z.npz: loads: the archive unpacks to more than the limit of 67108864 bytes");
}

TEST(Npz, AFalseClaimOfSizeIsFound) {
  // The central directory's entry (PK\1\2) holds the uncompressed size at byte 24, the local header
  // (PK\3\4) at byte 22.
  std::string bytes = DataBytes("zeros.npz");
  const size_t local = bytes.find("PK\x03\x04");
  const size_t central = bytes.find("PK\x01\x02");
  ASSERT_NE(central, std::string::npos);
  const uint32_t small = 4096;
  std::memcpy(&bytes[local + 22], &small, 4);
  std::memcpy(&bytes[central + 24], &small, 4);
  EXPECT_FALSE(ReadNpz(bytes, "z.npz", 1 << 20).ok());
}

TEST(Npz, AWrongChecksumIsFound) {
  std::string bytes = *NpzBytes({{"a", NpyBytes("|u1", {4}, "abcd")}});
  bytes[bytes.find("abcd")] = 'x';
  EXPECT_THAT(std::string(ReadNpz(bytes, "f.npz", kPlenty).status().message()),
              HasSubstr("f.npz: a: cannot be read"));
}

TEST(Npz, WhatIsNoArrayIsRefused) {
  std::string bytes = *NpzBytes({{"a", "no array at all"}});
  EXPECT_THAT(std::string(ReadNpz(bytes, "f.npz", kPlenty).status().message()),
              HasSubstr("f.npz: a: expected the bytes of an .npy file, got 15 others"));
  for (size_t at; (at = bytes.find("a.npy")) != std::string::npos;) bytes.replace(at, 5, "a.txt");
  EXPECT_THAT(std::string(ReadNpz(bytes, "f.npz", kPlenty).status().message()),
              HasSubstr("f.npz: expected only .npy arrays in it, got \"a.txt\""));
  EXPECT_THAT(std::string(ReadNpz("PK\x03\x04", "f.npz", kPlenty).status().message()),
              HasSubstr("f.npz: not an .npz archive"));
}

TEST(Npz, AnArchiveIsWrittenTheSameEveryTime) {
  const std::string a = NpyBytes("|u1", {3}, "abc");
  EXPECT_EQ(*NpzBytes({{"a", a}, {"b", a}}), *NpzBytes({{"a", a}, {"b", a}}));
}

}  // namespace
}  // namespace relibra
