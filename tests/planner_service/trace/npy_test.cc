#include "planner_service/trace/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace relibra {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// An .npy file of version 1 with this header text, unpadded.
std::string File(const std::string& header, const std::string& data) {
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size() & 0xFF) +
         static_cast<char>(header.size() >> 8) + header + data;
}

TEST(Npy, TheHeadersThatNumPyWritesAreRead) {
  const std::string bytes =
      File("{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2), }        \n",
           std::string("\x01\0\0\0\xff\xff\xff\xff", 8));
  absl::StatusOr<NpyArray> array = ParseNpy(bytes, "a");
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ(DtypeName(*array), "int32");
  EXPECT_THAT(array->shape, ElementsAre(1, 2));
  EXPECT_THAT(std::string(ToUint32(*array, "f: a", 0, 9).status().message()),
              HasSubstr("f: a[0][1]: expected 0 to 9, got -1"));
}

TEST(Npy, WhatIsWrittenIsReadBackAtAnAlignedPlace) {
  for (const std::vector<size_t>& shape :
       std::vector<std::vector<size_t>>{{}, {6}, {2, 3}, {1, 2, 3}}) {
    size_t size = 2;
    for (size_t d : shape) size *= d;
    const std::string data(size, 'x');
    const std::string bytes = NpyBytes("<u2", shape, data);
    EXPECT_EQ((bytes.size() - data.size()) % 64, 0);
    absl::StatusOr<NpyArray> array = ParseNpy(bytes, "a");
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->shape, shape);
    EXPECT_EQ(std::string(array->data), data);
  }
}

TEST(Npy, MalformedHeadersAreRefused) {
  struct Case {
    std::string bytes;
    const char* message;
  };
  const std::string good = "'descr': '|u1', 'fortran_order': False, 'shape': (2,)";
  std::string version9 = File("{" + good + "}", "ab");
  version9[6] = 9;
  for (const Case& c : std::vector<Case>{
           {"", "expected the bytes of an .npy file, got 0 others"},
           {"PK too short", "expected the bytes of an .npy file"},
           {version9, "version 1, 2 or 3, got 9"},
           {File("{" + good + "}", "ab").substr(0, 20), "cut off or too long"},
           {File("{" + good + "}", "a"), "expected 2 bytes of uint8 [2], got 1"},
           {File("{" + good + "}", "abc"), "expected 2 bytes of uint8 [2], got 3"},
           {File(good, "ab"), "expected '{'"},
           {File("{" + good, "ab"), "expected"},
           {File("{" + good + "} + 1", "ab"), "text after '}'"},
           {File("{'descr': '|u1', 'shape': (2,)}", "ab"), "expected descr, fortran_order and"},
           {File("{'descr': '|u1', " + good + "}", "ab"), "malformed .npy header: descr"},
           {File("{'code': 'os.system', " + good + "}", "ab"), "unknown key code"},
           {File("{'descr': '|u1', 'fortran_order': 0, 'shape': (2,)}", "ab"), "fortran_order"},
           {File("{'descr': '|u1', 'fortran_order': False, 'shape': (-2,)}", "ab"), "shape"},
           {File("{'descr': '|u1', 'fortran_order': False, 'shape': 2}", "ab"), "shape"},
           {File("{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999,)}", ""),
            "shape"},
           {File("{'descr': '<u8', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", ""),
            "larger than memory"},
           {File("{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}", "ab"),
            "expected an integer dtype, got \"|b1\""},
           {File("{'descr': '<u3', 'fortran_order': False, 'shape': (2,)}", "ab"),
            "expected an integer dtype"},
           {File("{'descr': '>U2', 'fortran_order': False, 'shape': ()}", "12345678"),
            "expected little-endian elements"}}) {
    const absl::Status status = ParseNpy(c.bytes, "f: a").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), AllOf(StartsWith("f: a: "), HasSubstr(c.message)));
  }
}

TEST(Npy, TextsOfEveryKindAreReadAsUtf8) {
  const std::string bytes_kind = NpyBytes("|S3", {2}, std::string("ab\0cde", 6));
  EXPECT_THAT(*ToStrings(*ParseNpy(bytes_kind, "a"), "a"), ElementsAre("ab", "cde"));
  // "é€" and U+1F600, four bytes a character.
  const std::string unicode =
      NpyBytes("<U2", {2}, std::string("\xe9\0\0\0\xac\x20\0\0\x00\xf6\x01\0\0\0\0\0", 16));
  EXPECT_THAT(*ToStrings(*ParseNpy(unicode, "a"), "a"),
              ElementsAre("\xC3\xA9\xE2\x82\xAC", "\xF0\x9F\x98\x80"));
  const std::string integers = NpyBytes("|i1", {2}, "\x05\xff");
  EXPECT_THAT(*ToStrings(*ParseNpy(integers, "a"), "a"), ElementsAre("5", "-1"));
  const std::string surrogate = NpyBytes("<U1", {1}, std::string("\x00\xd8\0\0", 4));
  EXPECT_THAT(std::string(ToStrings(*ParseNpy(surrogate, "a"), "a").status().message()),
              HasSubstr("a[0]: expected Unicode text"));
}

}  // namespace
}  // namespace relibra
