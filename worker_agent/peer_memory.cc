#include "worker_agent/peer_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker_agent/transport/collectives.h"

namespace relibra::agent {
namespace {

using transport::Operation;
using transport::Tag;

// A description of a rank's memory: 64-bit words and byte strings, one after the other.
class Writer {
 public:
  void Word(uint64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  void Bytes(const std::string& value) {
    Word(value.size());
    bytes_ += value;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  uint64_t Word() {
    uint64_t value = 0;
    if (bytes_.size() - at_ < sizeof(value)) {
      ok_ = false;
      return 0;
    }
    std::memcpy(&value, bytes_.data() + at_, sizeof(value));
    at_ += sizeof(value);
    return value;
  }
  std::string Bytes() {
    const uint64_t length = Word();
    if (bytes_.size() - at_ < length) ok_ = false;
    if (!ok_) return "";
    std::string value = bytes_.substr(at_, length);
    at_ += length;
    return value;
  }
  bool ok() const { return ok_; }

 private:
  const std::string& bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace

size_t PeerMemory::LocationIndex(int layer, int slot, int buffer) const {
  return (static_cast<size_t>(layer) * store_.shape().home_slots() + slot) * store_.specs().size() +
         buffer;
}

absl::Status PeerMemory::OpenOwn(std::string& description) {
  const GroupShape& shape = store_.shape();
  const std::vector<MemoryBlock> blocks = store_.HomeBlocks();
  Writer writer;
  writer.Word(LayoutFingerprint(shape, store_.specs()));
  writer.Word(blocks.size());
  for (const MemoryBlock& block : blocks) {
    auto region = transport_.Register(block.base, block.bytes);
    if (!region.ok()) return region.status();
    writer.Bytes((*region)->ExportHandle());
    own_.push_back(*std::move(region));
  }
  for (int l = 0; l < shape.layers(); ++l) {
    for (int s = 0; s < shape.home_slots(); ++s) {
      for (int b = 0; b < static_cast<int>(store_.specs().size()); ++b) {
        const char* base = store_.Buffer(l, s, b);
        if (base == nullptr) {
          return absl::FailedPreconditionError(
              absl::StrCat("layer ", shape.layer_ids[l], ", home slot ", s, ", buffer '",
                           store_.specs()[b].name, "' has no memory"));
        }
        uint64_t block = 0;
        uint64_t offset = 0;
        for (size_t i = 0; i < blocks.size() && store_.specs()[b].moves(); ++i) {
          if (base < blocks[i].base || base >= blocks[i].base + blocks[i].bytes) continue;
          block = i;
          offset = base - blocks[i].base;
        }
        writer.Word(block);
        writer.Word(offset);
      }
    }
  }
  description = writer.Take();
  return absl::OkStatus();
}

absl::Status PeerMemory::ImportPeer(int rank, const std::string& description) {
  const GroupShape& shape = store_.shape();
  Reader reader(description);
  if (reader.Word() != LayoutFingerprint(shape, store_.specs())) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " has another group shape or other expert buffers than rank ",
                     transport_.rank()));
  }
  Peer& peer = peers_[rank];
  const uint64_t blocks = reader.Word();
  for (uint64_t i = 0; i < blocks && reader.ok(); ++i) {
    const std::string handle = reader.Bytes();
    if (!reader.ok()) break;
    auto region = transport_.Import(rank, handle);
    if (!region.ok()) return region.status();
    peer.blocks.push_back(*std::move(region));
  }
  peer.locations.resize(LocationIndex(shape.layers(), 0, 0));
  for (Location& location : peer.locations) {
    location.block = static_cast<uint32_t>(reader.Word());
    location.offset = reader.Word();
    if (!reader.ok() || location.block >= peer.blocks.size()) {
      return absl::DataLossError(absl::StrCat("rank ", rank, " described its memory wrongly"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PeerMemory>> PeerMemory::Exchange(transport::Transport& transport,
                                                                 const ExpertStore& store,
                                                                 uint64_t chunk_bytes,
                                                                 absl::Time deadline) {
  if (transport.size() != store.shape().ranks() || transport.rank() != store.rank()) {
    return absl::InvalidArgumentError(absl::StrCat("transport is rank ", transport.rank(), " of ",
                                                   transport.size(), ", experts are of rank ",
                                                   store.rank(), " of ", store.shape().ranks()));
  }
  auto memory = std::unique_ptr<PeerMemory>(
      new PeerMemory(transport, store, std::max<uint64_t>(chunk_bytes, 4096)));
  std::string own;
  if (absl::Status s = memory->OpenOwn(own); !s.ok()) return s;
  auto all = transport::AllGatherBytes(transport, own, deadline);
  if (!all.ok()) return all.status();
  memory->peers_.resize(transport.size());
  for (int r = 0; r < transport.size(); ++r) {
    if (absl::Status s = memory->ImportPeer(r, (*all)[r]); !s.ok()) return s;
  }
  return memory;
}

void PeerMemory::Fetch(const HomeSlot& from, int to, Tag tag,
                       absl::FunctionRef<bool(const BufferSpec&)> wanted,
                       absl::FunctionRef<char*(int buffer)> destination,
                       std::vector<Operation>& operations) const {
  const int rank = transport_.rank();
  const bool one_sided = transport_.capabilities().one_sided_get;
  for (int b = 0; b < static_cast<int>(store_.specs().size()); ++b) {
    const BufferSpec& spec = store_.specs()[b];
    if (!wanted(spec)) continue;
    if (rank == to && rank == from.rank) {
      std::memcpy(destination(b), store_.Buffer(from.layer, from.slot, b), spec.bytes);
    } else if (one_sided && rank == to) {
      const Location& location =
          peers_[from.rank].locations[LocationIndex(from.layer, from.slot, b)];
      for (uint64_t at = 0; at < spec.bytes; at += chunk_bytes_) {
        operations.push_back(transport_.Get(*peers_[from.rank].blocks[location.block],
                                            location.offset + at, destination(b) + at,
                                            std::min(chunk_bytes_, spec.bytes - at)));
      }
    } else if (!one_sided && rank == to) {
      operations.push_back(transport_.Receive(from.rank, tag, destination(b), spec.bytes));
    } else if (!one_sided && rank == from.rank) {
      operations.push_back(
          transport_.Send(to, tag, store_.Buffer(from.layer, from.slot, b), spec.bytes));
    }
  }
}

}  // namespace relibra::agent
