// The memory of one rank's experts: home slots, replica slots, and spare memory for moves.
//
//   auto store = ExpertStore::Create(shape, rank, {{"w13", FloatType::kBf16, bytes,
//                                                   BufferRole::kWeight}, ...});
//   store->RegisterBuffer(layer, slot, buffer, pointer);   // memory that the trainer owns, or
//   store->AllocateMissing();                              // memory of the agent's own
#ifndef RELIBRA_WORKER_AGENT_EXPERT_STORE_H_
#define RELIBRA_WORKER_AGENT_EXPERT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/dtype.h"
#include "worker_agent/group_shape.h"

namespace relibra::agent {

enum class BufferRole {
  kWeight,          // moves with the home, and is what a replica gets
  kOptimizerState,  // moves with the home
  kGradient,        // does not move; a replica's is added to the home's
};

// One buffer that every expert of every layer has.
struct BufferSpec {
  std::string name;
  FloatType type = FloatType::kFp32;
  uint64_t bytes = 0;
  BufferRole role = BufferRole::kWeight;
  // kGradient only: the type of a replica's gradient, kFp32 or kBf16; a home's is `type`, kFp32.
  FloatType replica_type = FloatType::kFp32;

  bool moves() const { return role != BufferRole::kGradient; }
  // Bytes of a replica's buffer: `bytes`, or half of it where replicas keep bf16 gradients.
  uint64_t replica_bytes() const { return bytes / SizeOf(type) * SizeOf(Stored()); }

 private:
  FloatType Stored() const { return role == BufferRole::kGradient ? replica_type : type; }
};

// Contiguous memory.
struct MemoryBlock {
  char* base = nullptr;
  size_t bytes = 0;
};

// Host memory. Not thread-safe; the pointers it hands out stay valid while it lives.
class ExpertStore {
 public:
  // INVALID_ARGUMENT naming the buffer when the specs are empty, have equal names, no bytes, bytes
  // that are no multiple of the element, or a gradient that the kernels cannot add.
  static absl::StatusOr<std::unique_ptr<ExpertStore>> Create(const GroupShape& shape, int rank,
                                                             std::vector<BufferSpec> specs);
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  // Uses memory of the caller's, who keeps it until the store is gone. slot: a physical slot (see
  // GroupShape); optimizer state exists in home slots only.
  absl::Status RegisterBuffer(int layer, int slot, int buffer, void* pointer);
  // Allocates, zeroed, every buffer that was not registered.
  void AllocateMissing();

  const GroupShape& shape() const { return shape_; }
  int rank() const { return rank_; }
  const std::vector<BufferSpec>& specs() const { return specs_; }
  // The index of the buffer of that name, or -1.
  int Find(const std::string& name) const;

  // Null where a buffer was neither registered nor allocated.
  char* Buffer(int layer, int slot, int buffer) const {
    return buffers_[(static_cast<size_t>(layer) * shape_.physical_slots() + slot) * specs_.size() +
                    buffer];
  }

  // The memory of the home slots that peers read, neighbouring buffers merged, ascending.
  std::vector<MemoryBlock> HomeBlocks() const;

  // Bytes of what moves with a home, and of what a replica gets.
  uint64_t MovingBytes() const;
  uint64_t WeightBytes() const;

  // Spare memory for the i-th of a step's incoming experts: MovingBytes(), the buffers that move
  // one after the other in the order of the specs. Allocated at its first use and kept.
  char* Spare(int i);
  // Sets the spare memory aside until the store is gone, because a transfer that failed may still
  // write into it; Spare hands out other memory from now on.
  void AbandonSpare();
  uint64_t spare_bytes() const { return MovingBytes() * spare_.size(); }

  // Zeroes the gradients of a physical slot.
  void ZeroGradients(int layer, int slot);

 private:
  ExpertStore(GroupShape shape, int rank, std::vector<BufferSpec> specs);

  struct Free {
    void operator()(char* memory) const;
  };
  using Memory = std::unique_ptr<char, Free>;
  static Memory Allocate(size_t bytes);

  const GroupShape shape_;
  const int rank_;
  const std::vector<BufferSpec> specs_;
  std::vector<char*> buffers_;  // [L, physical slots, buffers]
  std::vector<Memory> owned_;
  std::vector<Memory> spare_;
};

// Fingerprint of shape and specs: ranks with different ones cannot exchange experts.
uint64_t LayoutFingerprint(const GroupShape& shape, absl::Span<const BufferSpec> specs);

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_EXPERT_STORE_H_
