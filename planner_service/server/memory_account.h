// Bounds on the memory that clients can make the planner hold.
//
// Accounts form a chain, step -> job -> planner; what a step holds counts in all three. A charge is
// taken before the memory is and is given back when it is destroyed:
//
//   absl::StatusOr<MemoryCharge> charge = step->Charge(bytes);
//   if (!charge.ok()) return charge.status();  // RESOURCE_EXHAUSTED, names the quota and its flag
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_MEMORY_ACCOUNT_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_MEMORY_ACCOUNT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace relibra::server {

class MemoryAccount;

// Bytes taken from an account and its parents. Movable; gives the bytes back when destroyed and
// keeps the account alive until then.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  MemoryCharge(MemoryCharge&& other) noexcept { *this = std::move(other); }
  MemoryCharge& operator=(MemoryCharge&& other) noexcept;
  ~MemoryCharge();

  int64_t bytes() const { return bytes_; }

  // Takes over the bytes of another charge on the same account (or into an empty one).
  void Absorb(MemoryCharge other);

 private:
  friend class MemoryAccount;
  MemoryCharge(std::shared_ptr<MemoryAccount> account, int64_t bytes)
      : account_(std::move(account)), bytes_(bytes) {}

  std::shared_ptr<MemoryAccount> account_;
  int64_t bytes_ = 0;
};

// Any thread may call.
class MemoryAccount : public std::enable_shared_from_this<MemoryAccount> {
 public:
  // what: whose memory this is, e.g. "job demo"; flag: what sets the limit, e.g. "--max-job-bytes";
  // limit: most bytes that may be charged at once; parent: null for the planner's own account.
  static std::shared_ptr<MemoryAccount> Create(std::string what, std::string flag, int64_t limit,
                                               std::shared_ptr<MemoryAccount> parent);

  // Takes bytes (>= 0) from this account and its parents, or from none of them:
  // RESOURCE_EXHAUSTED naming the account that is full, its limit and its flag.
  absl::StatusOr<MemoryCharge> Charge(int64_t bytes);

  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t limit() const { return limit_; }

 private:
  friend class MemoryCharge;
  MemoryAccount(std::string what, std::string flag, int64_t limit,
                std::shared_ptr<MemoryAccount> parent)
      : what_(std::move(what)), flag_(std::move(flag)), limit_(limit), parent_(std::move(parent)) {}

  absl::Status Take(int64_t bytes);
  void GiveBack(int64_t bytes);

  const std::string what_;
  const std::string flag_;
  const int64_t limit_;
  const std::shared_ptr<MemoryAccount> parent_;
  std::atomic<int64_t> used_ = 0;
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_MEMORY_ACCOUNT_H_
