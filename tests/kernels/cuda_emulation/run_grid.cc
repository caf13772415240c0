// The threads of a block as fibers of one system thread. A fiber runs one CUDA thread after
// another; only when one of them must wait does it stay with that thread, and the next fiber goes
// on. So kernels without barriers need a single fiber.
#include <cuda_runtime.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace cuda_emulation {
namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr unsigned kWarp = 32;

enum class State { kNotStarted, kRunning, kAtBarrier, kAtShuffle, kDone };

struct Thread {
  State state = State::kNotStarted;
  uint64_t offered = 0;  // at a shuffle
  unsigned delta = 0;
  uint64_t received = 0;
};

struct Fiber {
  ucontext_t context = {};
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  unsigned thread = 0;  // the CUDA thread it runs or holds
};

[[noreturn]] void Die(const char* what) {
  fprintf(stderr, "CUDA emulation: %s\n", what);
  abort();
}

class BlockRun {
 public:
  BlockRun(const dim3& block, bool backwards, const std::function<void()>& body)
      : block_(block), backwards_(backwards), body_(body), threads_(block.x * block.y) {}

  void Run();
  void Wait(State state);
  Thread& current() { return threads_[fiber_->thread]; }

 private:
  static void FiberMain();
  // Not inlined: getcontext may not share a frame with objects that have destructors.
  __attribute__((noinline)) static void Prepare(Fiber& fiber);
  void StartThreads(Fiber& fiber);
  void SetThread(unsigned thread) const { threadIdx = dim3(thread % block_.x, thread / block_.x); }
  void Resume(Fiber& fiber);
  // Lets those go on whose wait is over; false when there are none.
  bool ReleaseBarrier();
  bool ReleaseShuffles();

  const dim3 block_;
  const bool backwards_;
  const std::function<void()>& body_;
  std::vector<Thread> threads_;
  unsigned started_ = 0;
  ucontext_t scheduler_ = {};
  std::vector<std::unique_ptr<Fiber>> waiting_;
  Fiber* fiber_ = nullptr;
};

BlockRun* running = nullptr;                // emulation is single-threaded
std::vector<std::unique_ptr<Fiber>> spare;  // fibers for reuse

void BlockRun::FiberMain() {
  running->StartThreads(*running->fiber_);
  running->fiber_->thread = ~0u;
  setcontext(&running->scheduler_);
}

void BlockRun::Prepare(Fiber& fiber) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.thread = ~0u;
  makecontext(&fiber.context, &BlockRun::FiberMain, 0);
}

void BlockRun::StartThreads(Fiber& fiber) {
  const auto count = static_cast<unsigned>(threads_.size());
  while (started_ < count) {
    fiber.thread = backwards_ ? count - 1 - started_ : started_;
    ++started_;
    threads_[fiber.thread].state = State::kRunning;
    SetThread(fiber.thread);
    body_();
    threads_[fiber.thread].state = State::kDone;
  }
}

void BlockRun::Resume(Fiber& fiber) {
  fiber_ = &fiber;
  if (fiber.thread != ~0u) {
    threads_[fiber.thread].state = State::kRunning;
    SetThread(fiber.thread);
  }
  swapcontext(&scheduler_, &fiber.context);
}

void BlockRun::Wait(State state) {
  Fiber& fiber = *fiber_;
  threads_[fiber.thread].state = state;
  swapcontext(&fiber.context, &scheduler_);
}

bool BlockRun::ReleaseBarrier() {
  for (const Thread& thread : threads_) {
    if (thread.state != State::kAtBarrier && thread.state != State::kDone) return false;
  }
  bool any = false;
  for (Thread& thread : threads_) {
    if (thread.state != State::kAtBarrier) continue;
    thread.state = State::kRunning;
    any = true;
  }
  return any;
}

bool BlockRun::ReleaseShuffles() {
  bool any = false;
  for (size_t first = 0; first < threads_.size(); first += kWarp) {
    const size_t lanes = std::min<size_t>(kWarp, threads_.size() - first);
    size_t arrived = 0;
    size_t done = 0;
    for (size_t i = first; i < first + lanes; ++i) {
      arrived += threads_[i].state == State::kAtShuffle;
      done += threads_[i].state == State::kDone;
    }
    if (arrived == 0) continue;
    if (done > 0 || lanes < kWarp) Die("a lane that a shuffle's mask names has left the kernel");
    if (arrived < kWarp) continue;
    for (size_t i = 0; i < kWarp; ++i) {
      Thread& thread = threads_[first + i];
      const size_t from = i + thread.delta < kWarp ? i + thread.delta : i;
      thread.received = threads_[first + from].offered;
    }
    for (size_t i = first; i < first + kWarp; ++i) threads_[i].state = State::kRunning;
    any = true;
  }
  return any;
}

void BlockRun::Run() {
  running = this;
  while (started_ < threads_.size()) {
    std::unique_ptr<Fiber> fiber;
    if (spare.empty()) {
      fiber = std::make_unique<Fiber>();
    } else {
      fiber = std::move(spare.back());
      spare.pop_back();
    }
    Prepare(*fiber);
    Resume(*fiber);
    (fiber->thread == ~0u ? spare : waiting_).push_back(std::move(fiber));
  }
  while (!waiting_.empty()) {
    const bool shuffled = ReleaseShuffles();
    if (!shuffled && !ReleaseBarrier()) Die("threads wait for each other: not all reach a barrier");
    std::vector<std::unique_ptr<Fiber>> resumable = std::move(waiting_);
    waiting_.clear();
    for (std::unique_ptr<Fiber>& fiber : resumable) {
      if (threads_[fiber->thread].state == State::kRunning) Resume(*fiber);
      (fiber->thread == ~0u ? spare : waiting_).push_back(std::move(fiber));
    }
  }
  running = nullptr;
}

}  // namespace

void RunGrid(const dim3& grid, const dim3& block, const std::function<void()>& thread) {
  static bool backwards = false;
  backwards = !backwards;
  gridDim = grid;
  blockDim = block;
  for (unsigned b = 0; b < grid.x; ++b) {
    blockIdx = dim3(backwards ? grid.x - 1 - b : b, 0, 0);
    BlockRun(block, backwards, thread).Run();
  }
}

void WaitForBlock() { running->Wait(State::kAtBarrier); }

uint64_t ShuffleDown(uint64_t value, unsigned delta) {
  Thread& thread = running->current();
  thread.offered = value;
  thread.delta = delta;
  running->Wait(State::kAtShuffle);
  return running->current().received;
}

}  // namespace cuda_emulation
