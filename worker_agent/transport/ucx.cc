#include "worker_agent/transport/ucx.h"

#include <ucp/api/ucp.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "worker_agent/transport/collectives.h"
#include "worker_agent/transport/ucx_worker.h"

namespace relibra::transport {
namespace {

constexpr char kMagic[] = "relibra-ucx";

using StatePtr = std::shared_ptr<Operation::State>;

// The tag as UCX matches it: channel, source rank, value.
ucp_tag_t WireTag(int source, Tag tag) {
  return (uint64_t{tag.channel} << 56) | (uint64_t{static_cast<uint16_t>(source)} << 40) |
         (tag.value & 0xffffffffffULL);
}

// "relibra-ucx 1.13 <worker address>": peers with another UCX are told apart before they are tried.
std::string AddressPrefix() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  return absl::StrCat(kMagic, " ", major, ".", minor, " ");
}

// Whether every pair of ranks reads memory without the target's processor.
bool HardwareReadsMemory(const std::string& transports) {
  const char* from_environment = std::getenv("UCX_TLS");
  const std::string used =
      !transports.empty() || from_environment == nullptr ? transports : from_environment;
  if (used.empty() || used == "all") {
    std::error_code none;
    return std::filesystem::directory_iterator("/sys/class/infiniband", none) !=
           std::filesystem::directory_iterator();
  }
  bool reads = false;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(used, ','))) {
    if (name == "tcp" || name[0] == '^') return false;
    reads |= absl::StartsWith(name, "rc") || absl::StartsWith(name, "dc") || name == "ib" ||
             name == "cma" || name == "knem" || name == "xpmem";
  }
  return reads;
}

class UcxRegion : public Region {
 public:
  UcxRegion(UcxWorker& worker, ucp_mem_h memory, std::string handle)
      : worker_(worker), memory_(memory), handle_(std::move(handle)) {}
  ~UcxRegion() override {
    absl::MutexLock lock(&worker_.mutex());
    ucp_mem_unmap(worker_.context(), memory_);
  }
  std::string ExportHandle() const override { return handle_; }

 private:
  UcxWorker& worker_;
  ucp_mem_h memory_;
  const std::string handle_;
};

class UcxRemoteRegion : public RemoteRegion {
 public:
  UcxRemoteRegion(UcxWorker& worker, int rank, uint64_t base, uint64_t bytes, ucp_rkey_h key)
      : worker_(worker), rank_(rank), base_(base), bytes_(bytes), key_(key) {}
  ~UcxRemoteRegion() override {
    absl::MutexLock lock(&worker_.mutex());
    ucp_rkey_destroy(key_);
  }
  int rank() const override { return rank_; }
  size_t bytes() const override { return bytes_; }
  uint64_t base() const { return base_; }
  ucp_rkey_h key() const { return key_; }

 private:
  UcxWorker& worker_;
  const int rank_;
  const uint64_t base_;
  const uint64_t bytes_;
  ucp_rkey_h key_;
};

// All state of the class is guarded by the worker's mutex; UCX's callbacks run under it too.
class UcxTransport : public Transport {
 public:
  UcxTransport(UcxOptions options, std::unique_ptr<UcxWorker> worker, const std::string& address)
      : options_(std::move(options)),
        one_sided_(options_.one_sided == OneSided::kAuto ? HardwareReadsMemory(options_.transports)
                                                         : options_.one_sided == OneSided::kOn),
        peers_(options_.size),
        worker_(std::move(worker)),
        address_(AddressPrefix() + address) {}
  ~UcxTransport() override;

  std::string name() const override { return "ucx"; }
  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  Capabilities capabilities() const override;
  std::string LocalAddress() const override { return address_; }
  absl::Status Connect(absl::Span<const std::string> addresses, absl::Time deadline) override;
  absl::StatusOr<std::unique_ptr<Region>> Register(void* base, size_t bytes) override;
  absl::StatusOr<std::unique_ptr<RemoteRegion>> Import(int rank,
                                                       const std::string& handle) override;
  Operation Get(const RemoteRegion& region, size_t offset, void* buffer, size_t bytes) override;
  Operation Send(int to, Tag tag, const void* data, size_t bytes) override;
  Operation Receive(int from, Tag tag, void* buffer, size_t capacity) override;
  absl::Status Wait(absl::Span<const Operation> operations, absl::Time deadline) override;
  void Progress() override { worker_->Progress(); }
  absl::StatusOr<std::vector<uint64_t>> AllGather(absl::Span<const uint64_t> words,
                                                  absl::Time deadline) override {
    return GatherWords(*this, sequence_.fetch_add(1), words, deadline);
  }

 private:
  struct Peer {
    ucp_ep_h endpoint = nullptr;
    // Why the endpoint failed; OK while it works.
    absl::Status failure;
    // The endpoint's callback is told which peer it is.
    UcxTransport* owner = nullptr;
    int rank = -1;
  };
  // What UCX holds of an operation until it is done.
  struct InFlight {
    StatePtr state;
    UcxTransport* owner;
    void* request;  // for cancelling receives
    size_t bytes;
  };

  static void OnEndpointFailed(void* argument, ucp_ep_h, ucs_status_t status);
  static void OnSent(void* request, ucs_status_t status, void* user_data);
  static void OnReceived(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                         void* user_data);
  void Complete(InFlight* in_flight, absl::Status status, size_t bytes);
  // Takes what a starting call of UCX returned.
  void Started(InFlight* in_flight, ucs_status_ptr_t result);
  InFlight* NewInFlight(const Operation& operation, size_t bytes);
  absl::Status FailureOf(int rank) const;
  void CancelReceives(absl::Span<const Operation> operations);
  bool CloseEndpoints(bool force);

  const UcxOptions options_;
  const bool one_sided_;
  std::vector<Peer> peers_;  // [size], guarded by worker_->mutex()
  // By state, guarded by worker_->mutex().
  absl::flat_hash_map<const Operation::State*, std::unique_ptr<InFlight>> in_flight_;
  // After what its callbacks use, so that it is destroyed first.
  std::unique_ptr<UcxWorker> worker_;
  const std::string address_;
  std::atomic<uint64_t> sequence_{0};
};

Capabilities UcxTransport::capabilities() const {
  ucp_context_attr_t attributes = {};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  bool cuda = false;
  if (ucp_context_query(worker_->context(), &attributes) == UCS_OK) {
    cuda = (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
  }
  return {.one_sided_get = one_sided_,
          .background_progress = true,
          .cuda_memory = cuda,
          .detects_peer_death = options_.peer_error_handling};
}

absl::Status UcxTransport::Connect(absl::Span<const std::string> addresses, absl::Time) {
  if (addresses.size() != peers_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("got ", addresses.size(), " addresses for ", peers_.size(), " ranks"));
  }
  const std::string prefix = AddressPrefix();
  absl::MutexLock lock(&worker_->mutex());
  for (int r = 0; r < size(); ++r) {
    const std::string& address = addresses[r];
    if (address.compare(0, prefix.size(), prefix) != 0) {
      const std::string theirs = address.compare(0, sizeof(kMagic) - 1, kMagic) == 0
                                     ? address.substr(0, address.find(' ', sizeof(kMagic)))
                                     : "no UCX address";
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", r, " offers '", theirs, "', this rank needs '", prefix, "'"));
    }
    Peer& peer = peers_[r];
    peer.owner = this;
    peer.rank = r;
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data() + prefix.size());
    params.err_mode =
        options_.peer_error_handling ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
    params.err_handler.cb = &UcxTransport::OnEndpointFailed;
    params.err_handler.arg = &peer;
    const ucs_status_t status = ucp_ep_create(worker_->worker(), &params, &peer.endpoint);
    if (status != UCS_OK) return UcxError(status, absl::StrCat("connecting to rank ", r));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Region>> UcxTransport::Register(void* base, size_t bytes) {
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = base;
  params.length = bytes;
  absl::MutexLock lock(&worker_->mutex());
  ucp_mem_h memory = nullptr;
  if (ucs_status_t s = ucp_mem_map(worker_->context(), &params, &memory); s != UCS_OK) {
    return UcxError(s, absl::StrCat("registering ", bytes, " bytes"));
  }
  void* key = nullptr;
  size_t key_bytes = 0;
  if (ucs_status_t s = ucp_rkey_pack(worker_->context(), memory, &key, &key_bytes); s != UCS_OK) {
    ucp_mem_unmap(worker_->context(), memory);
    return UcxError(s, "exporting a registered region");
  }
  const uint64_t words[] = {reinterpret_cast<uint64_t>(base), bytes};
  std::string handle(reinterpret_cast<const char*>(words), sizeof(words));
  handle.append(static_cast<const char*>(key), key_bytes);
  ucp_rkey_buffer_release(key);
  return std::make_unique<UcxRegion>(*worker_, memory, std::move(handle));
}

absl::StatusOr<std::unique_ptr<RemoteRegion>> UcxTransport::Import(int rank,
                                                                   const std::string& handle) {
  uint64_t words[2];
  if (rank < 0 || rank >= size() || handle.size() <= sizeof(words)) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a region handle of the UCX transport (rank ", rank, ")"));
  }
  std::memcpy(words, handle.data(), sizeof(words));
  absl::MutexLock lock(&worker_->mutex());
  if (peers_[rank].endpoint == nullptr) {
    return absl::FailedPreconditionError("a region is imported after Connect");
  }
  ucp_rkey_h key = nullptr;
  const ucs_status_t s =
      ucp_ep_rkey_unpack(peers_[rank].endpoint, handle.data() + sizeof(words), &key);
  if (s != UCS_OK) return UcxError(s, absl::StrCat("importing a region of rank ", rank));
  return std::make_unique<UcxRemoteRegion>(*worker_, rank, words[0], words[1], key);
}

UcxTransport::InFlight* UcxTransport::NewInFlight(const Operation& operation, size_t bytes) {
  auto in_flight = std::make_unique<InFlight>();
  in_flight->state = operation.state();
  in_flight->owner = this;
  in_flight->request = nullptr;
  in_flight->bytes = bytes;
  InFlight* raw = in_flight.get();
  in_flight_[operation.state().get()] = std::move(in_flight);
  return raw;
}

void UcxTransport::Complete(InFlight* in_flight, absl::Status status, size_t bytes) {
  const StatePtr state = in_flight->state;
  in_flight_.erase(state.get());
  state->Finish(std::move(status), bytes);
}

void UcxTransport::Started(InFlight* in_flight, ucs_status_ptr_t result) {
  if (UCS_PTR_IS_PTR(result)) {
    in_flight->request = result;
    return;
  }
  const ucs_status_t status = UCS_PTR_STATUS(result);
  const int peer = in_flight->state->peer;
  Complete(in_flight,
           status == UCS_OK ? absl::OkStatus()
                            : UcxError(status, absl::StrCat("transfer with rank ", peer)),
           in_flight->bytes);
}

void UcxTransport::OnSent(void* request, ucs_status_t status, void* user_data) {
  auto* in_flight = static_cast<InFlight*>(user_data);
  const int peer = in_flight->state->peer;
  in_flight->owner->Complete(in_flight,
                             status == UCS_OK
                                 ? absl::OkStatus()
                                 : UcxError(status, absl::StrCat("transfer with rank ", peer)),
                             in_flight->bytes);
  ucp_request_free(request);
}

void UcxTransport::OnReceived(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                              void* user_data) {
  auto* in_flight = static_cast<InFlight*>(user_data);
  const int peer = in_flight->state->peer;
  absl::Status result = absl::OkStatus();
  if (status == UCS_ERR_MESSAGE_TRUNCATED) {
    result = absl::InvalidArgumentError(
        absl::StrCat("rank ", peer, " sent more than the buffer of ", in_flight->bytes, " bytes"));
  } else if (status != UCS_OK) {
    result = UcxError(status, absl::StrCat("message from rank ", peer));
  }
  in_flight->owner->Complete(in_flight, std::move(result), status == UCS_OK ? info->length : 0);
  ucp_request_free(request);
}

void UcxTransport::OnEndpointFailed(void* argument, ucp_ep_h, ucs_status_t status) {
  auto* peer = static_cast<Peer*>(argument);
  if (!peer->failure.ok()) return;
  peer->failure = absl::UnavailableError(
      absl::StrCat("rank ", peer->rank, " is gone: UCX says ", ucs_status_string(status)));
}

absl::Status UcxTransport::FailureOf(int rank) const {
  if (rank < 0 || rank >= size()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " of ", size()));
  }
  if (peers_[rank].endpoint == nullptr) {
    return absl::FailedPreconditionError("a transfer was started before Connect");
  }
  return peers_[rank].failure;
}

Operation UcxTransport::Get(const RemoteRegion& region, size_t offset, void* buffer, size_t bytes) {
  const auto& remote = static_cast<const UcxRemoteRegion&>(region);
  Operation operation;
  operation.state()->peer = remote.rank();
  absl::MutexLock lock(&worker_->mutex());
  absl::Status failure = FailureOf(remote.rank());
  if (failure.ok() && !one_sided_) {
    failure = absl::UnimplementedError("one-sided gets are off (see OneSided)");
  }
  if (failure.ok() && (offset > remote.bytes() || bytes > remote.bytes() - offset)) {
    failure = absl::OutOfRangeError(
        absl::StrCat("get of ", bytes, " bytes at ", offset, " of a region of ", remote.bytes()));
  }
  if (!failure.ok() || bytes == 0) {
    operation.state()->Finish(failure, 0);
    return operation;
  }
  InFlight* in_flight = NewInFlight(operation, bytes);
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &UcxTransport::OnSent;
  param.user_data = in_flight;
  Started(in_flight, ucp_get_nbx(peers_[remote.rank()].endpoint, buffer, bytes,
                                 remote.base() + offset, remote.key(), &param));
  return operation;
}

Operation UcxTransport::Send(int to, Tag tag, const void* data, size_t bytes) {
  Operation operation;
  operation.state()->peer = to;
  absl::MutexLock lock(&worker_->mutex());
  if (absl::Status failure = FailureOf(to); !failure.ok()) {
    operation.state()->Finish(std::move(failure), 0);
    return operation;
  }
  InFlight* in_flight = NewInFlight(operation, bytes);
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &UcxTransport::OnSent;
  param.user_data = in_flight;
  Started(in_flight,
          ucp_tag_send_nbx(peers_[to].endpoint, data, bytes, WireTag(rank(), tag), &param));
  return operation;
}

Operation UcxTransport::Receive(int from, Tag tag, void* buffer, size_t capacity) {
  Operation operation;
  operation.state()->peer = from;
  operation.state()->receive = true;
  absl::MutexLock lock(&worker_->mutex());
  InFlight* in_flight = NewInFlight(operation, capacity);
  ucp_request_param_t param = {};
  // A request even when the message is there already, so that its length comes the same way.
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv = &UcxTransport::OnReceived;
  param.user_data = in_flight;
  const ucs_status_ptr_t result = ucp_tag_recv_nbx(worker_->worker(), buffer, capacity,
                                                   WireTag(from, tag), ~ucp_tag_t{0}, &param);
  // The callback may have run inside the call, and in_flight be gone.
  const auto found = in_flight_.find(operation.state().get());
  if (found != in_flight_.end()) Started(found->second.get(), result);
  return operation;
}

// A receive is not bound to an endpoint: UCX does not fail it when its source dies.
void UcxTransport::CancelReceives(absl::Span<const Operation> operations) {
  for (const Operation& operation : operations) {
    const auto found = in_flight_.find(operation.state().get());
    if (found == in_flight_.end() || !operation.state()->receive) continue;
    if (found->second->request == nullptr) continue;
    ucp_request_cancel(worker_->worker(), found->second->request);
  }
}

absl::Status UcxTransport::Wait(absl::Span<const Operation> operations, absl::Time deadline) {
  absl::Status result = absl::OkStatus();
  const Operation* pending = nullptr;
  size_t first_open = 0;  // all before it are done and OK
  const bool finished = worker_->Wait(
      [&] {
        while (first_open < operations.size() && operations[first_open].done() &&
               operations[first_open].status().ok()) {
          ++first_open;
        }
        pending = nullptr;
        for (const Operation& operation : operations.subspan(first_open)) {
          if (operation.done()) {
            if (!operation.status().ok()) {
              result = operation.status();
              return true;
            }
          } else {
            if (pending == nullptr) pending = &operation;
            const int peer = operation.state()->peer;
            if (operation.state()->receive && !peers_[peer].failure.ok()) {
              result = peers_[peer].failure;
              return true;
            }
          }
        }
        return pending == nullptr;
      },
      deadline);
  if (!finished) {
    result = absl::DeadlineExceededError(absl::StrCat(
        "rank ", rank(), " waited for rank ", pending->state()->peer, " past the deadline"));
  }
  if (!result.ok()) {
    absl::MutexLock lock(&worker_->mutex());
    CancelReceives(operations);
    ucp_worker_progress(worker_->worker());
  }
  return result;
}

// Flushes and closes every endpoint, or by force once one has failed. False when not all could be
// closed in time.
bool UcxTransport::CloseEndpoints(bool force) {
  std::vector<void*> requests;
  {
    absl::MutexLock lock(&worker_->mutex());
    for (Peer& peer : peers_) {
      if (peer.endpoint == nullptr) continue;
      if (force && !options_.peer_error_handling) continue;  // UCX forces only these
      ucp_request_param_t param = {};
      if (force) {
        param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        param.flags = UCP_EP_CLOSE_FLAG_FORCE;
      }
      void* request = ucp_ep_close_nbx(peer.endpoint, &param);
      peer.endpoint = nullptr;
      if (UCS_PTR_IS_PTR(request)) requests.push_back(request);
    }
  }
  return worker_->Wait(
      [&] {
        std::erase_if(requests, [](void* request) {
          if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
          ucp_request_free(request);
          return true;
        });
        return requests.empty();
      },
      absl::Now() + options_.close_timeout);
}

UcxTransport::~UcxTransport() {
  worker_->StopThread();
  bool failed = false;
  {
    std::vector<Operation> open;
    absl::MutexLock lock(&worker_->mutex());
    open.reserve(in_flight_.size());
    for (const auto& [state, in_flight] : in_flight_) open.emplace_back(in_flight->state);
    CancelReceives(open);
    failed = !in_flight_.empty();
    for (const Peer& peer : peers_) failed |= !peer.failure.ok();
  }
  const bool closed = CloseEndpoints(/*force=*/failed);
  absl::MutexLock lock(&worker_->mutex());
  if (!failed && closed && in_flight_.empty()) return;
  worker_->Abandon();
  // UCX may still hold what its requests refer to.
  for (auto& [state, in_flight] : in_flight_) (void)in_flight.release();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const UcxOptions& options) {
  if (options.size < 1 || options.size > 65535 || options.rank < 0 ||
      options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of ", options.size, " is out of range"));
  }
  absl::StatusOr<std::unique_ptr<UcxWorker>> worker = UcxWorker::Create(
      options.transports, options.net_devices, options.peer_error_handling, options.keepalive);
  if (!worker.ok()) return worker.status();
  absl::StatusOr<std::string> address = (*worker)->Address();
  if (!address.ok()) return address.status();
  return std::make_unique<UcxTransport>(options, *std::move(worker), *std::move(address));
}

}  // namespace relibra::transport
