// Tells the thread sanitizer what Debian's Abseil, which is built without it, synchronises: each
// function below stands before the library's of the same name and says "acquire" and "release"
// around it. Linked into every test of the tsan preset; gRPC's locks are Abseil's and so are seen
// too.
//
// Conditions of Await run inside the library, sometimes in the thread that unlocks: their reads are
// made with the lock held, which the sanitizer cannot know, so reads are ignored meanwhile.
#include <dlfcn.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace {

class IgnoreReads {
 public:
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

template <typename Function>
Function* Real(const char* symbol) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, symbol));
}

}  // namespace

// `this` is the first argument of a member function in the C++ ABI of x86-64 and aarch64.
#define RELIBRA_REAL(symbol, result, ...) \
  static auto* const real = Real<result(__VA_ARGS__)>(symbol)

namespace absl {

void Mutex::Lock() {
  RELIBRA_REAL("_ZN4absl7debian35Mutex4LockEv", void, Mutex*);
  real(this);
  __tsan_acquire(this);
}

bool Mutex::TryLock() {
  RELIBRA_REAL("_ZN4absl7debian35Mutex7TryLockEv", bool, Mutex*);
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  RELIBRA_REAL("_ZN4absl7debian35Mutex10ReaderLockEv", void, Mutex*);
  real(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  RELIBRA_REAL("_ZN4absl7debian35Mutex6UnlockEv", void, Mutex*);
  __tsan_release(this);
  IgnoreReads ignore;
  real(this);
}

void Mutex::ReaderUnlock() {
  RELIBRA_REAL("_ZN4absl7debian35Mutex12ReaderUnlockEv", void, Mutex*);
  __tsan_release(this);
  IgnoreReads ignore;
  real(this);
}

void Mutex::Await(const Condition& condition) {
  RELIBRA_REAL("_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE", void, Mutex*, const Condition&);
  __tsan_release(this);
  {
    IgnoreReads ignore;
    real(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  RELIBRA_REAL("_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE", bool,
               Mutex*, const Condition&, Duration);
  __tsan_release(this);
  bool met = false;
  {
    IgnoreReads ignore;
    met = real(this, condition, timeout);
  }
  __tsan_acquire(this);
  return met;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  RELIBRA_REAL("_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool,
               Mutex*, const Condition&, Time);
  __tsan_release(this);
  bool met = false;
  {
    IgnoreReads ignore;
    met = real(this, condition, deadline);
  }
  __tsan_acquire(this);
  return met;
}

void CondVar::Wait(Mutex* mutex) {
  RELIBRA_REAL("_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE", void, CondVar*, Mutex*);
  __tsan_release(mutex);
  real(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  RELIBRA_REAL("_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE", bool,
               CondVar*, Mutex*, Duration);
  __tsan_release(mutex);
  const bool timed_out = real(this, mutex, timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  RELIBRA_REAL("_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", bool, CondVar*,
               Mutex*, Time);
  __tsan_release(mutex);
  const bool timed_out = real(this, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

void Notification::Notify() {
  RELIBRA_REAL("_ZN4absl7debian312Notification6NotifyEv", void, Notification*);
  __tsan_release(this);
  real(this);
}

void Notification::WaitForNotification() const {
  RELIBRA_REAL("_ZNK4absl7debian312Notification19WaitForNotificationEv", void, const Notification*);
  real(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  RELIBRA_REAL("_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE",
               bool, const Notification*, Duration);
  const bool notified = real(this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  RELIBRA_REAL("_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE", bool,
               const Notification*, Time);
  const bool notified = real(this, deadline);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

}  // namespace absl
