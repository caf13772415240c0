#include "planner_service/server/record_counter.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "planner_service/server/quoted.h"

namespace relibra::server {
namespace {

constexpr size_t kMaxIdBytes = 128;
constexpr uint64_t kMaxTokens = std::numeric_limits<int32_t>::max();
// A record this short may well be alike by chance.
constexpr uint32_t kMinRowsToWarn = 16;

// Where a record is at fault: "sequence "a": what".
template <typename... Parts>
absl::Status Bad(const v1::RoutingRecord& record, const Parts&... what) {
  return absl::InvalidArgumentError(
      absl::StrCat("sequence ", Quoted(record.sequence_id()), ": ", what...));
}

absl::Status CheckTexts(const v1::RoutingRecord& record) {
  for (auto [field, text] :
       {std::pair<const char*, const std::string&>{"sequence_id", record.sequence_id()},
        {"prompt_group", record.prompt_group()}}) {
    if (text.size() > kMaxIdBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": expected at most ", kMaxIdBytes, " bytes, got ", text.size()));
    }
  }
  if (record.sequence_id().empty()) {
    return absl::InvalidArgumentError("sequence_id: expected 1 to 128 bytes, got none");
  }
  return absl::OkStatus();
}

absl::Status CheckAxis(const Job& job, const v1::RoutingRecord& record, uint32_t num_layers) {
  if (num_layers == static_cast<uint32_t>(job.axis_length)) return absl::OkStatus();
  const bool all_layers = job.spec.layer_axis() == v1::LAYER_AXIS_ALL_LAYERS;
  const uint32_t other_length = all_layers ? job.num_layers() : job.spec.num_hidden_layers();
  return Bad(record, "num_layers: expected ", job.axis_length, " (",
             all_layers ? "all hidden layers" : "the MoE layers alone", ", ",
             v1::LayerAxis_Name(job.spec.layer_axis()), "), got ", num_layers,
             num_layers == other_length ? absl::StrCat("; that is the number of ",
                                                       all_layers ? "MoE layers" : "hidden layers",
                                                       ": is the job's layer_axis right?")
                                        : "");
}

// Bytes of one id; 0 for a type this planner does not know.
size_t BytesOf(v1::IdType type) {
  switch (type) {
    case v1::ID_TYPE_UINT8:
    case v1::ID_TYPE_INT8:
      return 1;
    case v1::ID_TYPE_INT16:
    case v1::ID_TYPE_UINT16:
      return 2;
    case v1::ID_TYPE_INT32:
      return 4;
    case v1::ID_TYPE_INT64:
      return 8;
    default:
      return 0;
  }
}

absl::Status CheckIdsShape(const Job& job, const v1::RoutingRecord& record) {
  const v1::RoutedIds& ids = record.ids();
  const size_t id_bytes = BytesOf(ids.id_type());
  if (id_bytes == 0) return Bad(record, "ids.id_type: expected a known type, got ", ids.id_type());
  const v1::IdType wanted = job.spec.id_type();
  if (wanted != v1::ID_TYPE_UNSPECIFIED && ids.id_type() != wanted) {
    return Bad(record, "ids.id_type: expected the job's ", v1::IdType_Name(wanted), ", got ",
               v1::IdType_Name(ids.id_type()));
  }
  if (job.num_experts() - 1 > LargestId(ids.id_type())) {
    return Bad(record, "ids.id_type: ", v1::IdType_Name(ids.id_type()), " holds ids up to ",
               LargestId(ids.id_type()), ", too small for ", job.num_experts(), " experts");
  }
  absl::Status axis = CheckAxis(job, record, ids.num_layers());
  if (!axis.ok()) return axis;
  if (ids.top_k() != static_cast<uint32_t>(job.top_k())) {
    return Bad(record, "ids.top_k: expected ", job.top_k(), ", got ", ids.top_k());
  }
  const uint64_t expected = uint64_t{ids.num_tokens()} * ids.num_layers() * ids.top_k() * id_bytes;
  if (ids.ids().size() != expected) {
    return Bad(record, "ids.ids: expected ", expected, " bytes (", ids.num_tokens(), " tokens x ",
               ids.num_layers(), " layers x ", ids.top_k(), " ids of ", id_bytes, " bytes), got ",
               ids.ids().size());
  }
  return absl::OkStatus();
}

// Counts rows of ids of one type. The rows' bytes need no alignment.
template <typename Id>
class IdCounter {
 public:
  IdCounter(const Job& job, const v1::RoutingRecord& record)
      : job_(job), record_(record), last_token_(job.num_experts()) {}

  absl::Status Count(uint32_t first_row, uint32_t num_rows, RouteCounts& out) {
    const size_t top_k = job_.top_k();
    const size_t row_bytes = size_t{1} * job_.axis_length * top_k * sizeof(Id);
    for (int l = 0; l < job_.num_layers(); ++l) {
      const size_t at_layer = size_t{1} * job_.layer_rows[l] * top_k * sizeof(Id);
      uint32_t* counts = out.counts.data() + size_t{1} * l * job_.num_experts();
      std::fill(last_token_.begin(), last_token_.end(), 0);
      for (uint32_t row = first_row; row < first_row + num_rows; ++row) {
        const char* ids = record_.ids().ids().data() + row * row_bytes + at_layer;
        absl::Status status = CountRow(ids, row, l, counts, out.unrouted[l]);
        if (!status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CountRow(const char* ids, uint32_t row, int layer, uint32_t* counts,
                        uint32_t& unrouted) {
    const int top_k = job_.top_k();
    int below_zero = 0;
    for (int k = 0; k < top_k; ++k) {
      Id id;
      std::memcpy(&id, ids + k * sizeof(Id), sizeof(Id));
      if (std::is_signed_v<Id> && id < 0) {
        ++below_zero;
        continue;
      }
      if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(job_.num_experts())) {
        return At(row, layer, k, "expert ", int64_t{id}, ", but there are ", job_.num_experts(),
                  " (ids are logical; is this a physical id of a rebalanced engine?)");
      }
      if (last_token_[id] == row + 1) {
        return At(row, layer, k, "expert ", int64_t{id}, " twice in one row");
      }
      last_token_[id] = row + 1;
      ++counts[id];
    }
    if (below_zero == 0) return absl::OkStatus();
    if (below_zero < top_k) {
      return At(row, layer, top_k - 1, below_zero, " of ", top_k,
                " ids are below zero; expected all or none");
    }
    ++unrouted;
    return absl::OkStatus();
  }

  template <typename... Parts>
  absl::Status At(uint32_t row, int layer, int choice, const Parts&... what) const {
    return Bad(record_, "token ", uint64_t{record_.token_offset()} + row, ", layer ",
               job_.LayerId(layer), ", choice ", choice, ": ", what...);
  }

  const Job& job_;
  const v1::RoutingRecord& record_;
  std::vector<uint32_t> last_token_;  // [experts], 1 + the row in which the expert was seen last
};

absl::Status CountIdRows(const Job& job, const v1::RoutingRecord& record, uint32_t first_row,
                         uint32_t num_rows, RouteCounts& out) {
  switch (record.ids().id_type()) {
    case v1::ID_TYPE_UINT8:
      return IdCounter<uint8_t>(job, record).Count(first_row, num_rows, out);
    case v1::ID_TYPE_INT8:
      return IdCounter<int8_t>(job, record).Count(first_row, num_rows, out);
    case v1::ID_TYPE_INT16:
      return IdCounter<int16_t>(job, record).Count(first_row, num_rows, out);
    case v1::ID_TYPE_UINT16:
      return IdCounter<uint16_t>(job, record).Count(first_row, num_rows, out);
    case v1::ID_TYPE_INT32:
      return IdCounter<int32_t>(job, record).Count(first_row, num_rows, out);
    default:
      return IdCounter<int64_t>(job, record).Count(first_row, num_rows, out);
  }
}

std::vector<uint64_t> HashRows(const v1::RoutedIds& ids) {
  std::vector<uint64_t> hashes(ids.num_tokens());
  const size_t row_bytes = ids.num_tokens() == 0 ? 0 : ids.ids().size() / ids.num_tokens();
  for (size_t row = 0; row < hashes.size(); ++row) {
    hashes[row] = absl::HashOf(absl::string_view(ids.ids().data() + row * row_bytes, row_bytes));
  }
  return hashes;
}

// Capture and warm-up passes leave thousands of identical rows. Finds the only row that can be a
// majority, then counts it.
std::string WarnOfIdenticalRows(const v1::RoutingRecord& record,
                                const std::vector<uint64_t>& hashes) {
  if (hashes.size() < kMinRowsToWarn) return "";
  uint64_t candidate = 0;
  size_t lead = 0;
  for (uint64_t hash : hashes) {
    if (lead == 0) candidate = hash;
    lead += hash == candidate ? 1 : -1;
  }
  const size_t alike = std::count(hashes.begin(), hashes.end(), candidate);
  if (alike * 2 <= hashes.size()) return "";
  return absl::StrCat("sequence ", Quoted(record.sequence_id()), ": ", alike, " of ", hashes.size(),
                      " rows are identical; is this a warm-up pass?");
}

RouteCounts NoRoutes(const Job& job) {
  RouteCounts routes;
  routes.counts.resize(size_t{1} * job.num_layers() * job.num_experts());
  routes.unrouted.resize(job.num_layers());
  return routes;
}

absl::Status CountCounts(const Job& job, const v1::RoutingRecord& record, RouteCounts& out) {
  const v1::RoutedCounts& counts = record.counts();
  const auto num_layers = static_cast<uint32_t>(job.num_layers());
  const auto num_experts = static_cast<uint32_t>(job.num_experts());
  if (counts.num_layers() != num_layers) {
    return Bad(record, "counts.num_layers: expected ", num_layers, ", got ", counts.num_layers());
  }
  if (counts.num_experts() != num_experts) {
    return Bad(record, "counts.num_experts: expected ", num_experts, ", got ",
               counts.num_experts());
  }
  if (static_cast<size_t>(counts.counts_size()) != out.counts.size()) {
    return Bad(record, "counts.counts: expected ", num_layers, " x ", num_experts, " = ",
               out.counts.size(), " counts, got ", counts.counts_size());
  }
  std::copy(counts.counts().begin(), counts.counts().end(), out.counts.begin());
  for (uint32_t l = 0; l < num_layers; ++l) {
    uint64_t pairs = 0;
    for (uint32_t e = 0; e < num_experts; ++e) {
      const uint32_t count = out.counts[size_t{1} * l * num_experts + e];
      if (count > counts.num_tokens()) {
        return Bad(record, "layer ", job.LayerId(static_cast<int>(l)), ", expert ", e,
                   ": expected at most ", counts.num_tokens(), " (num_tokens), got ", count);
      }
      pairs += count;
    }
    const uint64_t top_k = job.top_k();
    if (pairs > counts.num_tokens() * top_k || pairs % top_k != 0) {
      return Bad(record, "layer ", job.LayerId(static_cast<int>(l)), ": expected ",
                 counts.num_tokens() * top_k, " (token, choice) pairs, or a multiple of top_k ",
                 top_k, " below it, got ", pairs);
    }
    out.unrouted[l] = static_cast<uint32_t>(counts.num_tokens() - pairs / top_k);
  }
  return absl::OkStatus();
}

absl::Status CheckExtent(const v1::RoutingRecord& record, uint32_t num_tokens) {
  const uint64_t end = uint64_t{record.token_offset()} + num_tokens;
  if (end > kMaxTokens || record.sequence_tokens() > kMaxTokens) {
    return Bad(record, "expected at most ", kMaxTokens, " tokens in a sequence, got ",
               std::max<uint64_t>(end, record.sequence_tokens()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CountedRecord> CountRecord(const Job& job, const v1::RoutingRecord& record) {
  absl::Status status = CheckTexts(record);
  if (!status.ok()) return status;
  CountedRecord counted;
  counted.record = &record;
  counted.routes = NoRoutes(job);
  switch (record.routing_case()) {
    case v1::RoutingRecord::kIds:
      counted.num_tokens = record.ids().num_tokens();
      status = CheckExtent(record, counted.num_tokens);
      if (status.ok()) status = CheckIdsShape(job, record);
      if (status.ok()) status = CountIdRows(job, record, 0, counted.num_tokens, counted.routes);
      if (!status.ok()) return status;
      counted.row_hashes = HashRows(record.ids());
      counted.warning = WarnOfIdenticalRows(record, counted.row_hashes);
      return counted;
    case v1::RoutingRecord::kCounts:
      counted.num_tokens = record.counts().num_tokens();
      status = CheckExtent(record, counted.num_tokens);
      if (status.ok()) status = CountCounts(job, record, counted.routes);
      if (!status.ok()) return status;
      counted.counts_hash = absl::HashOf(counted.routes.counts);
      return counted;
    default:
      return Bad(record, "routing: expected ids or counts, got none");
  }
}

RouteCounts CountRows(const Job& job, const v1::RoutingRecord& record, uint32_t first_row,
                      uint32_t num_rows) {
  RouteCounts routes = NoRoutes(job);
  // CountRecord took these rows, so they are good.
  CountIdRows(job, record, first_row, num_rows, routes).IgnoreError();
  return routes;
}

}  // namespace relibra::server
