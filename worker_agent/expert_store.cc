#include "worker_agent/expert_store.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace relibra::agent {
namespace {

constexpr size_t kAlignment = 256;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

absl::Status CheckSpec(const BufferSpec& spec) {
  const auto error = [&spec](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("buffer '", spec.name, "': ", what));
  };
  if (spec.name.empty()) return error("has no name");
  if (!IsValid(spec.type)) return error("its type is unknown");
  if (spec.bytes == 0 || spec.bytes % SizeOf(spec.type) != 0) {
    return error(absl::StrCat("has ", spec.bytes, " bytes, expected a positive multiple of ",
                              SizeOf(spec.type)));
  }
  if (spec.role != BufferRole::kGradient) return absl::OkStatus();
  if (spec.type != FloatType::kFp32) return error("a home's gradient must be fp32");
  if (spec.replica_type != FloatType::kFp32 && spec.replica_type != FloatType::kBf16) {
    return error("a replica's gradient must be fp32 or bf16");
  }
  return absl::OkStatus();
}

uint64_t Hash(uint64_t hash, uint64_t value) {
  for (int i = 0; i < 8; ++i) {
    hash = (hash ^ (value & 0xff)) * 1099511628211ULL;
    value >>= 8;
  }
  return hash;
}

}  // namespace

void ExpertStore::Free::operator()(char* memory) const { std::free(memory); }

ExpertStore::Memory ExpertStore::Allocate(size_t bytes) {
  const size_t aligned = Aligned(std::max<size_t>(bytes, 1));
  Memory memory(static_cast<char*>(std::aligned_alloc(kAlignment, aligned)));
  std::memset(memory.get(), 0, aligned);
  return memory;
}

ExpertStore::ExpertStore(GroupShape shape, int rank, std::vector<BufferSpec> specs)
    : shape_(std::move(shape)),
      rank_(rank),
      specs_(std::move(specs)),
      buffers_(static_cast<size_t>(shape_.layers()) * shape_.physical_slots() * specs_.size()) {}

absl::StatusOr<std::unique_ptr<ExpertStore>> ExpertStore::Create(const GroupShape& shape, int rank,
                                                                 std::vector<BufferSpec> specs) {
  if (absl::Status s = Validate(shape); !s.ok()) return s;
  if (rank < 0 || rank >= shape.ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", rank, ", expected 0 to ", shape.ranks() - 1));
  }
  bool has_weight = false;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (absl::Status s = CheckSpec(specs[i]); !s.ok()) return s;
    has_weight |= specs[i].role == BufferRole::kWeight;
    for (size_t j = 0; j < i; ++j) {
      if (specs[j].name == specs[i].name) {
        return absl::InvalidArgumentError(
            absl::StrCat("two buffers are named '", specs[i].name, "'"));
      }
    }
  }
  if (!has_weight) return absl::InvalidArgumentError("no buffer holds weights");
  return std::unique_ptr<ExpertStore>(new ExpertStore(shape, rank, std::move(specs)));
}

absl::Status ExpertStore::RegisterBuffer(int layer, int slot, int buffer, void* pointer) {
  const auto in_range = [](int value, int end) { return value >= 0 && value < end; };
  if (!in_range(layer, shape_.layers()) || !in_range(slot, shape_.physical_slots()) ||
      !in_range(buffer, static_cast<int>(specs_.size())) || pointer == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layer, ", slot ", slot, ", buffer ", buffer,
        pointer == nullptr ? ": null pointer" : ": out of range", " (", shape_.layers(),
        " layers, ", shape_.physical_slots(), " slots, ", specs_.size(), " buffers)"));
  }
  buffers_[(static_cast<size_t>(layer) * shape_.physical_slots() + slot) * specs_.size() + buffer] =
      static_cast<char*>(pointer);
  return absl::OkStatus();
}

void ExpertStore::AllocateMissing() {
  // One block a buffer kind, so that its home slots are neighbours and merge into one region.
  for (size_t b = 0; b < specs_.size(); ++b) {
    std::vector<std::pair<size_t, size_t>> missing;  // index into buffers_, offset in the block
    size_t total = 0;
    for (int l = 0; l < shape_.layers(); ++l) {
      for (int s = 0; s < shape_.physical_slots(); ++s) {
        const bool replica = s >= shape_.home_slots();
        if (Buffer(l, s, static_cast<int>(b)) != nullptr) continue;
        if (replica && specs_[b].role == BufferRole::kOptimizerState) continue;
        const size_t index =
            (static_cast<size_t>(l) * shape_.physical_slots() + s) * specs_.size() + b;
        missing.emplace_back(index, total);
        total += Aligned(replica ? specs_[b].replica_bytes() : specs_[b].bytes);
      }
    }
    if (missing.empty()) continue;
    owned_.push_back(Allocate(total));
    for (const auto& [index, offset] : missing) buffers_[index] = owned_.back().get() + offset;
  }
}

int ExpertStore::Find(const std::string& name) const {
  for (size_t b = 0; b < specs_.size(); ++b) {
    if (specs_[b].name == name) return static_cast<int>(b);
  }
  return -1;
}

std::vector<MemoryBlock> ExpertStore::HomeBlocks() const {
  std::vector<MemoryBlock> pieces;
  for (int l = 0; l < shape_.layers(); ++l) {
    for (int s = 0; s < shape_.home_slots(); ++s) {
      for (size_t b = 0; b < specs_.size(); ++b) {
        char* base = Buffer(l, s, static_cast<int>(b));
        if (specs_[b].moves() && base != nullptr) pieces.push_back({base, specs_[b].bytes});
      }
    }
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const MemoryBlock& a, const MemoryBlock& b) { return a.base < b.base; });
  std::vector<MemoryBlock> blocks;
  for (const MemoryBlock& piece : pieces) {
    // Padding up to the alignment does not part neighbours.
    if (!blocks.empty() &&
        static_cast<size_t>(piece.base - blocks.back().base) <= Aligned(blocks.back().bytes)) {
      blocks.back().bytes =
          std::max<size_t>(blocks.back().bytes, piece.base - blocks.back().base + piece.bytes);
    } else {
      blocks.push_back(piece);
    }
  }
  return blocks;
}

uint64_t ExpertStore::MovingBytes() const {
  uint64_t bytes = 0;
  for (const BufferSpec& spec : specs_) bytes += spec.moves() ? Aligned(spec.bytes) : 0;
  return bytes;
}

uint64_t ExpertStore::WeightBytes() const {
  uint64_t bytes = 0;
  for (const BufferSpec& spec : specs_) bytes += spec.role == BufferRole::kWeight ? spec.bytes : 0;
  return bytes;
}

char* ExpertStore::Spare(int i) {
  while (spare_.size() <= static_cast<size_t>(i)) spare_.push_back(Allocate(MovingBytes()));
  return spare_[i].get();
}

void ExpertStore::AbandonSpare() {
  for (Memory& memory : spare_) owned_.push_back(std::move(memory));
  spare_.clear();
}

void ExpertStore::ZeroGradients(int layer, int slot) {
  for (size_t b = 0; b < specs_.size(); ++b) {
    if (specs_[b].role != BufferRole::kGradient) continue;
    const bool replica = slot >= shape_.home_slots();
    std::memset(Buffer(layer, slot, static_cast<int>(b)), 0,
                replica ? specs_[b].replica_bytes() : specs_[b].bytes);
  }
}

uint64_t LayoutFingerprint(const GroupShape& shape, absl::Span<const BufferSpec> specs) {
  uint64_t hash = 14695981039346656037ULL;
  for (const int value :
       {shape.nodes, shape.gpus_per_node, shape.replica_slots, shape.experts, shape.layers()}) {
    hash = Hash(hash, static_cast<uint64_t>(value));
  }
  for (const uint32_t id : shape.layer_ids) hash = Hash(hash, id);
  for (const BufferSpec& spec : specs) {
    for (const char c : spec.name) hash = Hash(hash, static_cast<unsigned char>(c));
    hash = Hash(hash, static_cast<uint64_t>(spec.type));
    hash = Hash(hash, spec.bytes);
    hash = Hash(hash, static_cast<uint64_t>(spec.role));
    hash = Hash(hash, static_cast<uint64_t>(spec.replica_type));
  }
  return hash;
}

}  // namespace relibra::agent
