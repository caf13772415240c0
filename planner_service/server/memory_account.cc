#include "planner_service/server/memory_account.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace relibra::server {

MemoryCharge& MemoryCharge::operator=(MemoryCharge&& other) noexcept {
  std::swap(account_, other.account_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MemoryCharge::~MemoryCharge() {
  if (account_ != nullptr) account_->GiveBack(bytes_);
}

void MemoryCharge::Absorb(MemoryCharge other) {
  if (account_ == nullptr) {
    *this = std::move(other);
    return;
  }
  bytes_ += std::exchange(other.bytes_, 0);
}

std::shared_ptr<MemoryAccount> MemoryAccount::Create(std::string what, std::string flag,
                                                     int64_t limit,
                                                     std::shared_ptr<MemoryAccount> parent) {
  return std::shared_ptr<MemoryAccount>(
      new MemoryAccount(std::move(what), std::move(flag), limit, std::move(parent)));
}

absl::StatusOr<MemoryCharge> MemoryAccount::Charge(int64_t bytes) {
  absl::Status taken = Take(bytes);
  if (!taken.ok()) return taken;
  return MemoryCharge(shared_from_this(), bytes);
}

absl::Status MemoryAccount::Take(int64_t bytes) {
  const bool ever_fits = bytes <= limit_;
  const int64_t before = ever_fits ? used_.fetch_add(bytes) : used();
  if (!ever_fits || before + bytes > limit_) {
    if (ever_fits) used_.fetch_sub(bytes);
    return absl::ResourceExhaustedError(absl::StrCat(what_, ": ", bytes, " bytes more than the ",
                                                     before, " in use exceed the quota of ", limit_,
                                                     " bytes (", flag_, ")"));
  }
  if (parent_ != nullptr) {
    absl::Status taken = parent_->Take(bytes);
    if (!taken.ok()) {
      used_.fetch_sub(bytes);
      return taken;
    }
  }
  return absl::OkStatus();
}

void MemoryAccount::GiveBack(int64_t bytes) {
  used_.fetch_sub(bytes);
  if (parent_ != nullptr) parent_->GiveBack(bytes);
}

}  // namespace relibra::server
