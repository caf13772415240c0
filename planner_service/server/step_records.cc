#include "planner_service/server/step_records.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner_service/server/quoted.h"

namespace relibra::server {
namespace {

using Gap = std::pair<uint32_t, uint32_t>;  // [first token, end)

// Bytes that a sequence and a stretch cost beside their arrays.
constexpr int64_t kSequenceOverhead = 512;
constexpr int64_t kStretchOverhead = 128;

absl::Status Disagrees(const v1::RoutingRecord& record, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("sequence ", Quoted(record.sequence_id()), ": ", what));
}

// OK when the record says of tokens [begin, end) what the stretch at `offset` says of them.
absl::Status CheckOverlap(const CountedRecord& record, uint32_t begin, uint32_t end,
                          uint32_t offset, const SequenceRoutes::Stretch& stretch) {
  const uint32_t first = record.record->token_offset();
  if (!record.has_ids() || !stretch.has_ids) {
    const bool same = record.has_ids() == stretch.has_ids && first == offset &&
                      record.num_tokens == stretch.num_tokens &&
                      record.counts_hash == stretch.counts_hash;
    if (same) return absl::OkStatus();
    return Disagrees(*record.record,
                     absl::StrCat("tokens ", first, " to ", first + record.num_tokens - 1,
                                  " overlap an earlier piece of tokens ", offset, " to ",
                                  offset + stretch.num_tokens - 1,
                                  "; pieces of counts may only repeat as they were"));
  }
  for (uint32_t token = begin; token < end; ++token) {
    if (record.row_hashes[token - first] != stretch.row_hashes[token - offset]) {
      return Disagrees(*record.record,
                       absl::StrCat("token ", token, " was routed otherwise in an earlier piece"));
    }
  }
  return absl::OkStatus();
}

// The tokens of the record that no stretch has yet; an error when it disagrees with one that has.
absl::StatusOr<std::vector<Gap>> FindGaps(const CountedRecord& record,
                                          const SequenceRoutes& sequence) {
  const uint32_t first = record.record->token_offset();
  const uint32_t end = first + record.num_tokens;
  std::vector<Gap> gaps;
  uint32_t next = first;
  auto it = sequence.stretches.upper_bound(first);
  if (it != sequence.stretches.begin()) --it;
  for (; it != sequence.stretches.end() && it->first < end; ++it) {
    const auto& [offset, stretch] = *it;
    const uint32_t overlap_begin = std::max(first, offset);
    const uint32_t overlap_end = std::min(end, offset + stretch.num_tokens);
    if (overlap_begin >= overlap_end) continue;
    absl::Status agrees = CheckOverlap(record, overlap_begin, overlap_end, offset, stretch);
    if (!agrees.ok()) return agrees;
    if (next < overlap_begin) gaps.emplace_back(next, overlap_begin);
    next = overlap_end;
  }
  if (next < end) gaps.emplace_back(next, end);
  return gaps;
}

uint64_t EndOf(const SequenceRoutes& sequence) {
  if (sequence.stretches.empty()) return 0;
  const auto& [offset, stretch] = *sequence.stretches.rbegin();
  return uint64_t{offset} + stretch.num_tokens;
}

// What a record says of its sequence as a whole must not contradict what is known.
absl::Status CheckSequence(const v1::RoutingRecord& record, uint32_t num_tokens,
                           const SequenceRoutes& sequence) {
  if (record.sequence_tokens() != 0 && sequence.sequence_tokens != 0 &&
      record.sequence_tokens() != sequence.sequence_tokens) {
    return Disagrees(
        record, absl::StrCat("sequence_tokens: an earlier piece said ", sequence.sequence_tokens,
                             ", now ", record.sequence_tokens()));
  }
  const uint32_t tokens = std::max(record.sequence_tokens(), sequence.sequence_tokens);
  const uint64_t end = std::max(EndOf(sequence), uint64_t{record.token_offset()} + num_tokens);
  if (tokens != 0 && end > tokens) {
    return Disagrees(
        record, absl::StrCat("sequence_tokens: ", tokens, ", but a piece reaches token ", end - 1));
  }
  if (!record.prompt_group().empty() && !sequence.prompt_group.empty() &&
      record.prompt_group() != sequence.prompt_group) {
    return Disagrees(
        record, absl::StrCat("prompt_group: an earlier piece said ", Quoted(sequence.prompt_group),
                             ", now ", Quoted(record.prompt_group())));
  }
  if (record.has_ids() && sequence.id_type != v1::ID_TYPE_UNSPECIFIED &&
      record.ids().id_type() != sequence.id_type) {
    return Disagrees(record, absl::StrCat("ids.id_type: an earlier piece was ",
                                          v1::IdType_Name(sequence.id_type), ", now ",
                                          v1::IdType_Name(record.ids().id_type()),
                                          "; pieces of one sequence must have one type"));
  }
  return absl::OkStatus();
}

void AddTo(absl::Span<const uint32_t> values, std::vector<uint32_t>& sums) {
  for (size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
}

void TakeFrom(absl::Span<const uint32_t> values, std::vector<uint32_t>& sums) {
  for (size_t i = 0; i < values.size(); ++i) sums[i] -= values[i];
}

}  // namespace

uint64_t SequenceRoutes::covered() const {
  uint64_t tokens = 0;
  for (const auto& [offset, stretch] : stretches) tokens += stretch.num_tokens;
  return tokens;
}

uint64_t SequenceRoutes::expected() const {
  return std::max<uint64_t>(EndOf(*this), sequence_tokens == 0 ? 0 : sequence_tokens - 1);
}

absl::StatusOr<AddedRecords> StepRecords::Add(absl::Span<const CountedRecord> records) {
  absl::MutexLock lock(&mutex_);
  MemoryCharge charge;
  std::vector<Change> changes;
  changes.reserve(records.size());
  for (const CountedRecord& record : records) {
    absl::Status status = AddOne(record, charge, changes);
    if (status.ok()) continue;
    for (auto change = changes.rbegin(); change != changes.rend(); ++change) Undo(*change);
    return status;
  }
  charge_.Absorb(std::move(charge));
  if (!changes.empty()) last_record_ = absl::Now();
  return AddedRecords{.accepted = changes.size(), .repeated = records.size() - changes.size()};
}

absl::Status StepRecords::AddOne(const CountedRecord& record, MemoryCharge& charge,
                                 std::vector<Change>& changes) {
  const v1::RoutingRecord& message = *record.record;
  auto found = sequences_.find(message.sequence_id());
  const bool is_new = found == sequences_.end();
  static const SequenceRoutes* const kNoRoutes = new SequenceRoutes;
  const SequenceRoutes& known = is_new ? *kNoRoutes : found->second;
  absl::Status status = CheckSequence(message, record.num_tokens, known);
  if (!status.ok()) return status;
  absl::StatusOr<std::vector<Gap>> gaps = FindGaps(record, known);
  if (!gaps.ok()) return gaps.status();
  const bool tells_more = (message.sequence_tokens() != 0 && known.sequence_tokens == 0) ||
                          (!message.prompt_group().empty() && known.prompt_group.empty());
  if (gaps->empty() && !is_new && !tells_more) return absl::OkStatus();
  if (!sealed_by_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("sequence ", Quoted(message.sequence_id()),
                                                      ": new records, but ", sealed_by_,
                                                      " is already planned"));
  }

  int64_t bytes = static_cast<int64_t>(gaps->size()) * kStretchOverhead;
  if (record.has_ids()) bytes += static_cast<int64_t>(record.num_tokens) * sizeof(uint64_t);
  if (is_new) {
    bytes += kSequenceOverhead + static_cast<int64_t>(message.sequence_id().size()) +
             int64_t{4} * job_->num_layers() * (job_->num_experts() + 1);
  }
  absl::StatusOr<MemoryCharge> taken = account_->Charge(bytes);
  if (!taken.ok()) return taken.status();
  charge.Absorb(*std::move(taken));

  SequenceRoutes& sequence = is_new ? sequences_[message.sequence_id()] : found->second;
  if (is_new) {
    sequence.counts.resize(size_t{1} * job_->num_layers() * job_->num_experts());
    sequence.unrouted.resize(job_->num_layers());
  }
  Change& change = changes.emplace_back();
  change.sequence_id = message.sequence_id();
  change.is_new = is_new;
  Apply(record, *gaps, sequence, change);
  return absl::OkStatus();
}

void StepRecords::Apply(const CountedRecord& record, absl::Span<const Gap> gaps,
                        SequenceRoutes& sequence, Change& change) {
  const v1::RoutingRecord& message = *record.record;
  const uint32_t first = message.token_offset();
  change.sequence_tokens_before = sequence.sequence_tokens;
  change.prompt_group_before = sequence.prompt_group;
  change.id_type_before = sequence.id_type;
  if (message.sequence_tokens() != 0) sequence.sequence_tokens = message.sequence_tokens();
  if (!message.prompt_group().empty()) sequence.prompt_group = message.prompt_group();
  if (message.has_ids()) sequence.id_type = message.ids().id_type();
  for (const auto& [begin, end] : gaps) {
    SequenceRoutes::Stretch& stretch = sequence.stretches[begin];
    stretch.num_tokens = end - begin;
    stretch.has_ids = record.has_ids();
    stretch.counts_hash = record.counts_hash;
    if (record.has_ids()) {
      stretch.row_hashes.assign(record.row_hashes.begin() + (begin - first),
                                record.row_hashes.begin() + (end - first));
    }
    change.offsets.push_back(begin);
    change.num_tokens += end - begin;
    // A piece of counts has one gap, all of it or none.
    const bool whole = end - begin == record.num_tokens;
    RouteCounts part = whole ? record.routes : record.CountRows(begin - first, end - begin);
    AddTo(part.counts, sequence.counts);
    AddTo(part.unrouted, sequence.unrouted);
    if (change.routes.counts.empty()) {
      change.routes = std::move(part);
    } else {
      AddTo(part.counts, change.routes.counts);
      AddTo(part.unrouted, change.routes.unrouted);
    }
  }
  tokens_ += change.num_tokens;
}

void StepRecords::Undo(const Change& change) {
  tokens_ -= change.num_tokens;
  auto found = sequences_.find(change.sequence_id);
  if (change.is_new) {
    sequences_.erase(found);
    return;
  }
  SequenceRoutes& sequence = found->second;
  for (uint32_t offset : change.offsets) sequence.stretches.erase(offset);
  TakeFrom(change.routes.counts, sequence.counts);
  TakeFrom(change.routes.unrouted, sequence.unrouted);
  sequence.sequence_tokens = change.sequence_tokens_before;
  sequence.prompt_group = change.prompt_group_before;
  sequence.id_type = change.id_type_before;
}

absl::Status StepRecords::ReadAndSeal(absl::string_view by,
                                      absl::FunctionRef<absl::Status(const SequenceMap&)> read) {
  absl::MutexLock lock(&mutex_);
  absl::Status status = read(sequences_);
  if (status.ok() && sealed_by_.empty()) sealed_by_ = std::string(by);
  return status;
}

absl::Status StepRecords::Read(absl::FunctionRef<absl::Status(const SequenceMap&)> read) const {
  absl::MutexLock lock(&mutex_);
  return read(sequences_);
}

void StepRecords::Unseal() {
  absl::MutexLock lock(&mutex_);
  sealed_by_.clear();
}

StepRecords::Totals StepRecords::totals() const {
  absl::MutexLock lock(&mutex_);
  return {.sequences = sequences_.size(), .tokens = tokens_, .last_record = last_record_};
}

}  // namespace relibra::server
