#include "planner_service/trace/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "planner_service/trace/file_bytes.h"
#include "planner_service/trace/npz.h"

namespace relibra {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::string DataPath(const std::string& file) {
  return std::string(RELIBRA_SOURCE_DIR) + "/tests/planner_service/trace/data/" + file;
}

// The trace of a fixture that NumPy wrote (data/make_npz.py).
absl::StatusOr<Trace> ReadData(const std::string& file, const TraceReadOptions& options = {}) {
  return ReadTraceFile(DataPath(file), options);
}

CountTrace CountsIn(const absl::StatusOr<Trace>& trace) {
  EXPECT_TRUE(trace.ok()) << trace.status();
  return std::get<CountTrace>(trace->routing);
}

SequenceTrace SequencesIn(const absl::StatusOr<Trace>& trace) {
  EXPECT_TRUE(trace.ok()) << trace.status();
  return std::get<SequenceTrace>(trace->routing);
}

std::vector<uint32_t> Matrix(const CountTrace& trace, int m, int l) {
  const absl::Span<const uint32_t> matrix = trace.loads.At(m, l);
  return {matrix.begin(), matrix.end()};
}

template <typename T>
std::string Npy(const char* descr, std::vector<size_t> shape, std::vector<T> values) {
  return NpyBytes(
      descr, shape,
      absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

using Arrays = std::vector<std::pair<std::string, std::string>>;

absl::StatusOr<Trace> Parse(const Arrays& arrays, const TraceReadOptions& options = {}) {
  absl::StatusOr<std::string> bytes = NpzBytes(arrays);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return ParseTrace(*bytes, "t.npz", options);
}

TEST(TraceFile, CountsThatNumPyWroteAreRead) {
  const CountTrace trace = CountsIn(ReadData("counts.npz"));
  EXPECT_EQ(trace.loads.shape(),
            (LoadShape{.micro_batches = 2, .layers = 3, .sources = 2, .experts = 4}));
  EXPECT_THAT(trace.layer_ids, ElementsAre(1, 2, 5));
  EXPECT_THAT(Matrix(trace, 1, 2), ElementsAre(1200, 1201, 1202, 1203, 1210, 1211, 1212, 1213));
  EXPECT_THAT(trace.unrouted, IsEmpty());
}

TEST(TraceFile, CompressedCountsOfAnotherTypeAreTheSame) {
  const CountTrace trace = CountsIn(ReadData("counts_compressed.npz"));
  EXPECT_EQ(trace.loads.counts(), CountsIn(ReadData("counts.npz")).loads.counts());
  EXPECT_THAT(trace.layer_ids, ElementsAre(0, 1, 2));
}

TEST(TraceFile, SequencesThatNumPyWroteAreCounted) {
  const SequenceTrace trace = SequencesIn(ReadData("sequences.npz"));
  EXPECT_THAT(trace.ids, ElementsAre("a", "längere", "c"));
  EXPECT_THAT(trace.tokens, ElementsAre(2, 0, 3));
  EXPECT_THAT(trace.counts, ElementsAre(2, 1, 0, 0, 1, 0, 0, 2, 1, 1,    // a
                                        0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    // längere
                                        0, 3, 1, 1, 1, 2, 1, 1, 0, 0));  // c
  EXPECT_THAT(trace.unrouted, ElementsAre(0, 0, 0, 0, 0, 1));
  EXPECT_EQ(trace.top_k, 2);
  EXPECT_EQ(trace.num_experts, 5);

  const absl::StatusOr<CountTrace> counts = CountsOf(trace, 0);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_THAT(Matrix(*counts, 0, 1), ElementsAre(0, 0, 0, 0, 0, 2, 1, 1, 0, 0));
  EXPECT_THAT(Matrix(*counts, 1, 0), ElementsAre(2, 1, 0, 0, 1, 0, 0, 0, 0, 0));
  EXPECT_THAT(counts->unrouted, ElementsAre(0, 0, 0, 1, 0, 0, 0, 0));  // [M][L][S]
  EXPECT_DOUBLE_EQ(MissingShare(*counts), 1.0 / 10);                   // 5 tokens x 2 layers
}

TEST(TraceFile, RawTokensGoToTheirRankAndMicroBatch) {
  const absl::StatusOr<Trace> read = ReadData("raw.npz", {.num_ranks = 3});
  const CountTrace trace = CountsIn(read);
  EXPECT_EQ(trace.loads.shape(),
            (LoadShape{.micro_batches = 2, .layers = 2, .sources = 3, .experts = 5}));
  // Micro-batch 0: tokens 0 and 4 on rank 0, tokens 1 and 3 on rank 1; micro-batch 1: token 2.
  EXPECT_THAT(Matrix(trace, 0, 0), ElementsAre(1, 2, 0, 0, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0));
  EXPECT_THAT(Matrix(trace, 0, 1), ElementsAre(1, 0, 2, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0));
  EXPECT_THAT(Matrix(trace, 1, 0), ElementsAre(0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(Matrix(trace, 1, 1), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(trace.unrouted, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0));
  EXPECT_THAT(read->warnings, ElementsAre(HasSubstr("array comment is not known")));
}

TEST(TraceFile, RowsOfDenseLayersAreSkippedWhenTheMoeLayersAreNamed) {
  // Unnamed, the zeros of the dense layer are an expert chosen twice.
  EXPECT_THAT(std::string(ReadData("dense.npz").status().message()),
              HasSubstr("routed_experts: token 0, layer 0, slot 1: expert 0 stands in slot 0"));
  const CountTrace trace = CountsIn(ReadData("dense.npz", {.moe_layers = {1}}));
  EXPECT_THAT(trace.layer_ids, ElementsAre(1));
  EXPECT_THAT(Matrix(trace, 0, 0), ElementsAre(0, 1, 2, 1));
  EXPECT_THAT(std::string(ReadData("dense.npz", {.moe_layers = {1, 2}}).status().message()),
              HasSubstr("expected a row for MoE layer 2; its layer axis has 2 rows, 0 to 1"));
}

TEST(TraceFile, ALayerWithoutAnyRouteIsDenseAndNotMissing) {
  const CountTrace trace =
      CountsIn(Parse({{"routed_experts", Npy<int8_t>("|i1", {2, 2, 1}, {-1, 0, -1, 1})},
                      {"token_rank", Npy<int8_t>("|i1", {2}, {0, 0})},
                      {"token_micro_batch", Npy<int8_t>("|i1", {2}, {0, 0})},
                      {"num_experts", Npy<int8_t>("|i1", {}, {2})}}));
  EXPECT_THAT(Matrix(trace, 0, 0), ElementsAre(0, 0));
  EXPECT_THAT(Matrix(trace, 0, 1), ElementsAre(1, 1));
  EXPECT_THAT(trace.unrouted, IsEmpty());
  EXPECT_EQ(MissingShare(trace), 0);
}

TEST(TraceFile, JsonCountsAreRead) {
  const CountTrace trace = CountsIn(ParseTrace(
      R"({"why": "notes are allowed", "num_experts": 2, "layer_ids": [7, 9],
          "loads": [[[[1, 2], [3, 4]], [[5, 6], [7, 4294967288]]]]})",
      "t.json", {}));
  EXPECT_EQ(trace.loads.shape(),
            (LoadShape{.micro_batches = 1, .layers = 2, .sources = 2, .experts = 2}));
  EXPECT_THAT(trace.layer_ids, ElementsAre(7, 9));
  EXPECT_THAT(Matrix(trace, 0, 1), ElementsAre(5, 6, 7, 4294967288));
}

TEST(TraceFile, WhatIsWrittenIsReadBack) {
  const std::string path = testing::TempDir() + "trace_file_test";
  const absl::StatusOr<Trace> raw = ReadData("raw.npz");
  for (const std::string suffix : {".npz", ".json"}) {
    ASSERT_TRUE(WriteTraceFile(*raw, path + suffix).ok());
    const CountTrace back = CountsIn(ReadTraceFile(path + suffix, {}));
    EXPECT_EQ(back.loads.shape(), CountsIn(raw).loads.shape());
    EXPECT_EQ(back.loads.counts(), CountsIn(raw).loads.counts());
    EXPECT_EQ(back.layer_ids, CountsIn(raw).layer_ids);
    if (suffix == ".npz") {
      EXPECT_EQ(back.unrouted, CountsIn(raw).unrouted);
      EXPECT_EQ(back.top_k, 2);
    }
  }
  absl::StatusOr<Trace> sequences = ReadData("sequences.npz");
  std::get<SequenceTrace>(sequences->routing).prompt_groups = {4, 4, 5};
  ASSERT_TRUE(WriteTraceFile(*sequences, path + ".npz").ok());
  const SequenceTrace there = SequencesIn(sequences);
  const SequenceTrace back = SequencesIn(ReadTraceFile(path + ".npz", {}));
  EXPECT_EQ(back.num_experts, there.num_experts);
  EXPECT_EQ(back.top_k, there.top_k);
  EXPECT_EQ(back.layer_ids, there.layer_ids);
  EXPECT_EQ(back.ids, there.ids);
  EXPECT_EQ(back.tokens, there.tokens);
  EXPECT_EQ(back.counts, there.counts);
  EXPECT_EQ(back.unrouted, there.unrouted);
  EXPECT_EQ(back.prompt_groups, there.prompt_groups);
  EXPECT_EQ(back.source_ranks, there.source_ranks);
  EXPECT_EQ(back.micro_batches, there.micro_batches);
  EXPECT_THAT(std::string(WriteTraceFile(*sequences, path + ".json").message()),
              HasSubstr("only counts have a JSON form"));
}

struct BadFile {
  const char* file;
  const char* message;
};

TEST(TraceFile, FilesThatAreNoTraceSayWhyInOneLine) {
  for (const BadFile& bad : std::vector<BadFile>{
           {"fortran.npz", "loads: expected C order, got Fortran order"},
           {"float.npz", "loads: expected an integer dtype, got \"<f8\""},
           {"big_endian.npz", "loads: expected little-endian elements, got \">i4\""},
           {"objects.npz", "loads: expected an integer dtype, got \"|O\""},
           {"structured.npz", "loads: expected an integer dtype, got a structured one"},
           {"make_npz.py", "expected a trace (.npz or a JSON object)"},
           {"nothing.npz", "cannot be opened: No such file"}}) {
    const absl::Status status = ReadData(bad.file).status();
    EXPECT_THAT(std::string(status.message()), AllOf(StartsWith(DataPath(bad.file) + ": "),
                                                     HasSubstr(bad.message), Not(HasSubstr("\n"))));
  }
}

struct BadText {
  const char* text;
  const char* message;
};

TEST(TraceFile, JsonOfTheWrongShapeNamesFieldAndIndex) {
  for (const BadText& bad : std::vector<BadText>{
           {"{\"num_experts\": 2, \"loads\": [[[[1, 2]]]", "not JSON: parse error at line 1"},
           {"{\"loads\": [[[[1]]]]}", "expected a field \"num_experts\""},
           {"{\"num_experts\": 2}", "expected a field \"loads\""},
           {R"({"num_experts": 0, "loads": []})", "num_experts: expected an integer from 1"},
           {R"({"num_experts": 2.0, "loads": []})", "num_experts: expected an integer from 1"},
           {R"({"num_experts": 2, "loads": 3})", "loads: expected an array, got an integer"},
           {R"({"num_experts": 2, "loads": []})", "loads: expected at least 1 entry"},
           {R"({"num_experts": 2, "loads": [[[]]]})", "loads[0][0]: expected at least 1 entry"},
           {R"({"num_experts": 2, "loads": [[[[1, 2]], [[1, 2], [3, 4]]]]})",
            "loads[0][1]: expected 1 rows as elsewhere, got 2"},
           {R"({"num_experts": 2, "loads": [[[[1, 2]]], [[[1, 2]], [[1, 2]]]]})",
            "loads[1]: expected 1 rows as elsewhere, got 2"},
           {R"({"num_experts": 3, "loads": [[[[1, 2, 3], [1, 2]]]]})",
            "loads[0][0][1]: expected 3 counts as elsewhere, got 2"},
           {R"({"num_experts": 2, "loads": [[[[1, -2]]]]})",
            "loads[0][0][0][1]: expected an integer from 0 to 4294967295, got -2"},
           {R"({"num_experts": 2, "loads": [[[[1, 2.5]]]]})", "loads[0][0][0][1]: expected an"},
           {R"({"num_experts": 2, "loads": [[[[1, 1e3]]]]})", "got 1000.0"},
           {R"({"num_experts": 2, "loads": [[[[1, 4294967296]]]]})", "got 4294967296"},
           {R"({"num_experts": 2, "loads": [[[[1, 99999999999999999999]]]]})", "expected an"},
           {R"({"num_experts": 2, "loads": [[[[1, null]]]]})", "got null"},
           {R"({"num_experts": 2, "loads": [[[[1, NaN]]]]})", "not JSON"},
           {R"({"num_experts": 2, "loads": [[[[1, 2]]]], "layer_ids": [0, 1]})",
            "layer_ids: expected 1 as loads has layers, got 2"},
           {R"({"num_experts": 1, "loads": [[[[1]], [[1]]]], "layer_ids": [3, 3]})",
            "layer_ids[1]: expected more than 3"},
           {R"({"num_experts": 2, "loads": [[[[1, 4294967295], [0, 1]]]]})",
            "layer 0, micro-batch 0, expert 1: load 4294967296 over all source ranks"},
           {R"({"num_experts": 2, "num_experts": 2, "loads": [[[[1, 2]]]]})", "stands twice"}}) {
    const absl::Status status = ParseTrace(bad.text, "t.json", {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.text;
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith("t.json: "), HasSubstr(bad.message), Not(HasSubstr("\n"))));
  }
}

TEST(TraceFile, JsonNestedWithoutEndIsRefusedNotFollowed) {
  EXPECT_FALSE(
      ParseTrace("{\"loads\": " + std::string(1'000'000, '['), "t.json", {}).status().ok());
  const std::string closed =
      "{\"loads\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_THAT(std::string(ParseTrace(closed, "t.json", {}).status().message()),
              HasSubstr("nested deeper than 64"));
}

// A good archive of each form, to be spoilt one array at a time.
Arrays CountArrays() { return {{"loads", Npy<uint32_t>("<u4", {1, 2, 1, 2}, {1, 2, 3, 4})}}; }

Arrays SequenceArrays() {
  return {{"routed_experts", Npy<uint8_t>("|u1", {3, 1, 2}, {0, 1, 2, 3, 1, 0})},
          {"sequence_offsets", Npy<int64_t>("<i8", {3}, {0, 1, 3})},
          {"num_experts", Npy<int64_t>("<i8", {}, {4})}};
}

Arrays RawArrays() {
  return {{"routed_experts", Npy<uint8_t>("|u1", {3, 1, 2}, {0, 1, 2, 3, 1, 0})},
          {"token_rank", Npy<int32_t>("<i4", {3}, {0, 0, 1})},
          {"token_micro_batch", Npy<int32_t>("<i4", {3}, {0, 0, 0})},
          {"num_experts", Npy<int64_t>("<i8", {}, {4})}};
}

Arrays CountedArrays() {
  return {{"sequence_counts", Npy<uint16_t>("<u2", {2, 1, 2}, {2, 0, 1, 1})},
          {"sequence_tokens", Npy<int64_t>("<i8", {2}, {1, 1})}};
}

Arrays With(Arrays arrays, const std::string& name, std::string bytes) {
  for (auto& [there, old] : arrays) {
    if (there == name) {
      old = std::move(bytes);
      return arrays;
    }
  }
  arrays.emplace_back(name, std::move(bytes));
  return arrays;
}

TEST(TraceFile, TheArchivesToBeSpoiltAreGood) {
  for (const Arrays& arrays : {CountArrays(), SequenceArrays(), RawArrays(), CountedArrays()}) {
    EXPECT_TRUE(Parse(arrays).ok()) << Parse(arrays).status();
  }
}

struct BadArrays {
  Arrays arrays;
  const char* message;
};

TEST(TraceFile, EveryBadArrayIsNamedWithIndexAndWhatWasExpected) {
  const std::vector<BadArrays> all = {
      {{{"other", Npy<uint8_t>("|u1", {1}, {1})}}, "expected one of the arrays loads"},
      {With(CountArrays(), "routed_experts", Npy<uint8_t>("|u1", {1}, {1})), "expected one of"},
      // counts
      {With({}, "loads", Npy<uint32_t>("<u4", {2, 2}, {1, 2, 3, 4})),
       "loads: expected shape [M, L, S, E], got [2, 2]"},
      {With({}, "loads", Npy<uint32_t>("<u4", {0, 1, 1, 2}, {})), "no dimension empty"},
      {With({}, "loads", Npy<int32_t>("<i4", {1, 2, 1, 2}, {1, 2, 3, -4})),
       "loads[0][1][0][1]: expected 0 to 4294967295, got -4"},
      {With({}, "loads", Npy<int64_t>("<i8", {1, 2, 1, 2}, {1, 2, int64_t{1} << 32, 4})),
       "loads[0][1][0][0]: expected 0 to 4294967295, got 4294967296"},
      {With({}, "loads", Npy<uint64_t>("<u8", {1, 1, 1, 1}, {~uint64_t{0}})),
       "got 18446744073709551615"},
      {With({}, "loads", Npy<uint32_t>("<u4", {1, 1, 2, 1}, {4294967295, 1})),
       "layer 0, micro-batch 0, expert 0: load 4294967296"},
      {With(CountArrays(), "layer_ids", Npy<int8_t>("|i1", {1}, {1})),
       "layer_ids: expected shape [2], got [1]"},
      {With(CountArrays(), "layer_ids", Npy<int8_t>("|i1", {2}, {1, -1})),
       "layer_ids[1]: expected 0 to"},
      {With(CountArrays(), "layer_ids", Npy<int8_t>("|i1", {2}, {2, 1})),
       "layer_ids[1]: expected more than 2"},
      {With(CountArrays(), "unrouted_tokens", Npy<int8_t>("|i1", {2}, {2, 1})),
       "unrouted_tokens: expected shape [1, 2, 1], got [2]"},
      // routed ids
      {With(RawArrays(), "routed_experts", Npy<uint8_t>("|u1", {6}, {0, 1, 2, 3, 1, 0})),
       "routed_experts: expected shape [T, L, K], got [6]"},
      {With(RawArrays(), "routed_experts", Npy<float>("<f4", {3, 1, 2}, {0, 1, 2, 3, 1, 0})),
       "routed_experts: expected an integer dtype, got \"<f4\""},
      {With(RawArrays(), "routed_experts", Npy<uint8_t>("|u1", {3, 1, 2}, {0, 1, 2, 4, 1, 0})),
       "routed_experts: token 1, layer 0, slot 1: expected a logical expert from 0 to 3, got 4"},
      {With(RawArrays(), "routed_experts", Npy<uint8_t>("|u1", {3, 1, 2}, {0, 1, 2, 3, 1, 1})),
       "routed_experts: token 2, layer 0, slot 1: expert 1 stands in slot 0 already"},
      {With(RawArrays(), "routed_experts",
            Npy<uint32_t>("<u4", {3, 1, 2}, {0, 1, 2, 3, 0x80000000, 0})),
       "routed_experts[2][0][0]: expected a logical expert, got a number above 2^31"},
      {With(RawArrays(), "num_experts", Npy<int64_t>("<i8", {}, {300})), "too few for 300 experts"},
      {With(RawArrays(), "num_experts", Npy<int64_t>("<i8", {}, {0})),
       "num_experts: expected 1 to 65535, got 0"},
      {With(RawArrays(), "num_experts", Npy<int64_t>("<i8", {2}, {4, 4})),
       "num_experts: expected a number, got [2]"},
      {With(RawArrays(), "num_experts", Npy<int64_t>("<i8", {}, {1})), "top_k: expected at most"},
      {With(RawArrays(), "token_rank", Npy<int32_t>("<i4", {2}, {0, 0})),
       "token_rank: expected shape [3], got [2]"},
      {With(RawArrays(), "token_rank", Npy<int32_t>("<i4", {3}, {0, -1, 0})),
       "token_rank[1]: expected 0 to 65534, got -1"},
      {With(RawArrays(), "token_micro_batch", Npy<int32_t>("<i4", {3}, {0, 0, 2'000'000'000})),
       "token_micro_batch[2]: expected 0 to 999999"},
      {With(RawArrays(), "sequence_offsets", Npy<int32_t>("<i4", {2}, {0, 3})),
       "either sequence_offsets or"},
      // sequences
      {With(SequenceArrays(), "sequence_offsets", Npy<int64_t>("<i8", {1}, {0})),
       "sequence_offsets: expected at least 2 offsets from 0 to the 3 rows"},
      {With(SequenceArrays(), "sequence_offsets", Npy<int64_t>("<i8", {3}, {0, 1, 2})),
       "got 3 from 0 to 2"},
      {With(SequenceArrays(), "sequence_offsets", Npy<int64_t>("<i8", {4}, {0, 2, 1, 3})),
       "sequence_offsets[2]: expected at least 2, got 1"},
      {With(SequenceArrays(), "sequence_offsets", Npy<int64_t>("<i8", {3}, {0, -1, 3})),
       "sequence_offsets[1]: expected 0 to"},
      {With(SequenceArrays(), "sequence_ids", Npy<int64_t>("<i8", {2}, {5, 5})),
       "sequence_ids[1]: \"5\" stands there twice"},
      {With(SequenceArrays(), "sequence_ids", Npy<int64_t>("<i8", {1}, {5})),
       "sequence_ids: expected 2 sequences, got 1"},
      {With(SequenceArrays(), "sequence_rank", Npy<int64_t>("<i8", {2}, {0, 1})),
       "expected both sequence_rank and sequence_micro_batch, or neither"},
      {With(SequenceArrays(), "routed_experts", Npy<uint8_t>("|u1", {3, 1, 2}, {0, 1, 2, 3, 9, 0})),
       "sequence \"1\", token 1, layer 0, slot 0: expected a logical expert from 0 to 3, got 9"},
      // counted sequences
      {With(CountedArrays(), "sequence_tokens", Npy<int64_t>("<i8", {1}, {1})),
       "sequence_tokens: expected shape [2], got [1]"},
      {{{"sequence_counts", Npy<uint16_t>("<u2", {2, 1, 2}, {2, 0, 1, 1})}},
       "sequence_tokens: expected an array [2], but there is none"},
      {With(CountedArrays(), "unrouted_tokens", Npy<int64_t>("<i8", {2}, {1, 0})),
       "unrouted_tokens: expected shape [2, 1], got [2]"},
  };
  for (const BadArrays& bad : all) {
    const absl::Status status = Parse(bad.arrays).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.message;
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith("t.npz: "), HasSubstr(bad.message), Not(HasSubstr("\n"))));
  }
}

TEST(TraceFile, AnArchiveWithoutArraysIsRefused) {
  const std::string empty = "PK\x05\x06" + std::string(18, '\0');
  EXPECT_THAT(std::string(ParseTrace(empty, "t.npz", {}).status().message()),
              StartsWith("t.npz: "));
}

TEST(TraceFile, RanksBeyondTheTopologyAreAnError) {
  EXPECT_THAT(std::string(Parse(RawArrays(), {.num_ranks = 1}).status().message()),
              HasSubstr("token_rank[2]: expected 0 to 0, got 1"));
  const Arrays placed =
      With(With(SequenceArrays(), "sequence_rank", Npy<int64_t>("<i8", {2}, {0, 2})),
           "sequence_micro_batch", Npy<int64_t>("<i8", {2}, {0, 0}));
  EXPECT_THAT(std::string(Parse(placed, {.num_ranks = 2}).status().message()),
              HasSubstr("sequence_rank: expected ranks 0 to 1, got 2"));
}

TEST(TraceFile, LoadsAboveTheMemoryLimitAreRefusedBeforeTheyAreMade) {
  // A million micro-batches out of three tokens.
  const Arrays arrays =
      With(RawArrays(), "token_micro_batch", Npy<int32_t>("<i4", {3}, {0, 0, 999'999}));
  const absl::Status status = Parse(arrays, {.max_bytes = 1 << 20}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than the limit of 1048576 bytes"));
}

TEST(TraceFile, WarmUpAndPartlyRoutedRowsAreWarnedOf) {
  std::vector<int8_t> ids;
  for (int t = 0; t < 20; ++t) ids.insert(ids.end(), {1, 2});
  ids[1] = -1;
  const absl::StatusOr<Trace> trace =
      Parse({{"routed_experts", Npy<int8_t>("|i1", {20, 1, 2}, ids)},
             {"sequence_offsets", Npy<int64_t>("<i8", {2}, {0, 20})},
             {"num_experts", Npy<int64_t>("<i8", {}, {4})}});
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_THAT(trace->warnings,
              ElementsAre(HasSubstr("over half of the rows are alike"),
                          HasSubstr("1 (token, layer) rows have only some ids below zero")));
}

TEST(TraceFile, NoCutOffOrSpoiltFileIsTakenForAGoodOneOrCrashes) {
  for (const char* file : {"counts.npz", "counts_compressed.npz", "sequences.npz", "raw.npz"}) {
    const std::string good = *ReadFileBytes(DataPath(file));
    for (size_t size = 0; size < good.size(); size += 7) {
      EXPECT_FALSE(ParseTrace(good.substr(0, size), "t.npz", {}).ok()) << file << " " << size;
    }
    for (size_t at = 0; at < good.size(); ++at) {
      std::string spoilt = good;
      spoilt[at] = static_cast<char>(spoilt[at] ^ 0x55);
      ParseTrace(spoilt, "t.npz", {.max_bytes = 1 << 24}).status().IgnoreError();
    }
  }
}

}  // namespace
}  // namespace relibra
