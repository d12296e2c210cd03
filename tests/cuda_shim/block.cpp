// Runs one block of a kernel. Its threads are fibers of one OS thread. A warp runs until all of its
// lanes wait or end, then the next warp runs. When every thread waits for the block, all continue.
#include <fmt/core.h>
#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <cstring>

#include "context.h"
#include "machine.h"
#include "memory.h"

__thread uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_shim {

__thread Here here;

namespace {

constexpr size_t kStack = 128 << 10;
constexpr int kLanes = 32;

enum class State : uint8_t { fresh, ready, at_warp, at_block, ended };

struct Thread {
  State state = State::fresh;
  bool odd = false;  // selects the one of the warp's two tables that its next call writes
  WarpCall call{};
  unsigned mask = 0;
  struct Fiber* fiber = nullptr;
  uint3 index{};
};

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  bool there;
};

struct Fiber {
  Context context{kStack};
  bool parked = false;  // waits for a thread to run
};
using Fibers = std::vector<std::unique_ptr<Fiber>>;

// Fibers that no OS thread uses at the moment. A process may have about 32,000 stacks with guard
// pages (vm.max_map_count), while dozens of OS threads launch kernels of a thousand threads, few of
// them at the same time.
class SpareFibers {
 public:
  std::unique_ptr<Fiber> take() {
    const std::lock_guard lock(mutex_);
    if (fibers_.empty()) return std::make_unique<Fiber>();
    std::unique_ptr<Fiber> fiber = std::move(fibers_.back());
    fibers_.pop_back();
    return fiber;
  }
  void add(Fibers fibers) {
    const std::lock_guard lock(mutex_);
    for (std::unique_ptr<Fiber>& fiber : fibers) {
      fiber->parked = false;
      fibers_.push_back(std::move(fiber));
    }
  }

 private:
  std::mutex mutex_;
  Fibers fibers_;
};
SpareFibers& spare_fibers() {
  static auto* const only = new SpareFibers;
  return *only;
}

class Block {
 public:
  Block();
  ~Block();
  std::string run(const KernelWork& work, int64_t index);
  void pause();

  // Called by fibers.
  [[noreturn]] void live();  // a fiber's main loop: runs one thread after another
  const uint64_t* exchange(WarpCall call, unsigned mask, uint64_t value);
  const Operands* exchange(const Operands& operands);
  void copy_later(const Copy& copy);
  void wait_for_copies();
  void sync();
  [[noreturn]] void stop(std::string why);
  bool running() const { return running_; }

 private:
  void prepare(const KernelWork& work, int64_t index);
  void run_warp(int warp);
  Context& fiber_of(int thread);
  void enter(int thread);
  void give_way(State state);
  bool release_warp(int warp);
  bool release_block();
  int first(int warp) const { return warp * kLanes; }
  int end(int warp) const { return std::min(first(warp) + kLanes, threads_); }
  bool runnable(int thread) const {
    const State state = thread_[static_cast<size_t>(thread)].state;
    return state == State::fresh || state == State::ready;
  }
  // The thread of the same warp to run after this one; -1 after the last.
  int next_in_warp(int thread) const {
    const int next = thread + (work_->descending ? -1 : 1);
    return next >= 0 && next < threads_ && next / kLanes == thread / kLanes ? next : -1;
  }
  int in_order(int warp, int i) const {  // the i-th lane of a warp to run
    return work_->descending ? end(warp) - 1 - i : first(warp) + i;
  }
  unsigned lanes(int warp) const {
    const int n = end(warp) - first(warp);
    return n == kLanes ? ~0u : (1u << n) - 1;
  }
  std::string where() const {
    return fmt::format("kernel {}, block ({}, {}, {})", kernel_name(work_->kernel), blockIdx.x,
                       blockIdx.y, blockIdx.z);
  }

  const KernelWork* work_ = nullptr;
  int threads_ = 0, current_ = 0;
  bool running_ = false;
  std::string fault_;
  std::array<Thread, kMaxThreads> thread_;
  std::array<std::array<std::array<uint64_t, kLanes>, 2>, kMaxThreads / kLanes> given_;
  std::array<std::array<std::array<Operands, kLanes>, 2>, kMaxThreads / kLanes> operands_;
  std::array<std::vector<Copy>, kMaxThreads> copies_;  // copies that threads have not waited for
  Fibers fibers_;
  std::vector<Fiber*> idle_;
  Context scheduler_, abandoned_;
  std::byte* shared_ = nullptr;
  std::vector<std::byte> signal_stack_;
};

constexpr size_t kSharedSpace = (kDynamicSharedOptIn + 4095) / 4096 * 4096;

// A thread of a kernel stays on its OS thread, which runs one block at a time.
thread_local std::unique_ptr<Block> block_of_thread;

struct sigaction previous_handlers[2];

// Abandons a kernel that accesses an invalid address; other faults are handled as usual.
void on_fault(int signal, siginfo_t* info, void* context) {
  Block* const block = block_of_thread.get();
  if (block != nullptr && block->running())
    block->stop(
        fmt::format("address {}, which is {}", info->si_addr, explain_address(info->si_addr)));
  const struct sigaction& previous = previous_handlers[signal == SIGBUS];
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, info, context);
  sigaction(signal, &previous, nullptr);
}

void catch_faults() {
  static const bool once = [] {
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &previous_handlers[0]);
    sigaction(SIGBUS, &action, &previous_handlers[1]);
    return true;
  }();
  (void)once;
}

void fiber_entry() { block_of_thread->live(); }

Block::Block() : signal_stack_(64 << 10) {
  void* const p = mmap(nullptr, kSharedSpace + 4096, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  shared_ = static_cast<std::byte*>(p);
  mprotect(shared_ + kSharedSpace, 4096, PROT_NONE);
  stack_t stack{};
  stack.ss_sp = signal_stack_.data();
  stack.ss_size = signal_stack_.size();
  sigaltstack(&stack, nullptr);
  catch_faults();
}

Block::~Block() {
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
  munmap(shared_, kSharedSpace + 4096);
}

void Block::prepare(const KernelWork& work, int64_t index) {
  work_ = &work;
  const uint3 size = work.block, grid = work.grid;
  threads_ = static_cast<int>(size.x * size.y * size.z);
  fault_.clear();
  for (int i = 0; i < threads_; ++i) {
    const auto t = static_cast<unsigned>(i);
    thread_[static_cast<size_t>(i)] = {
        .index = {t % size.x, t / size.x % size.y, t / (size.x * size.y)}};
    copies_[static_cast<size_t>(i)].clear();
  }
  const auto b = static_cast<uint64_t>(index);
  blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
              static_cast<unsigned>(b / grid.x / grid.y)};
  blockDim = size;
  gridDim = grid;
  const size_t bytes = (work.dynamic_shared + 15) / 16 * 16;
  std::byte* const shared = shared_ + kSharedSpace - bytes;
  std::memset(shared, 0xff, bytes);
  here.dynamic_shared = reinterpret_cast<unsigned char*>(shared);
}

std::string Block::run(const KernelWork& work, int64_t index) {
  prepare(work, index);
  const int warps = (threads_ + kLanes - 1) / kLanes;
  running_ = true;
  do {
    for (int i = 0; i < warps && fault_.empty(); ++i) run_warp(work.descending ? warps - 1 - i : i);
  } while (fault_.empty() && release_block());
  running_ = false;
  if (!fault_.empty()) {  // fibers in the middle of a thread cannot be reused
    idle_.clear();
    fibers_.clear();
  }
  return fault_;
}

void Block::pause() {
  idle_.clear();
  spare_fibers().add(std::exchange(fibers_, {}));
}

void Block::run_warp(int warp) {
  do {
    for (int i = 0; i < end(warp) - first(warp); ++i) {
      const int t = in_order(warp, i);
      if (!runnable(t)) continue;
      scheduler_.switch_to(fiber_of(t));
      if (!fault_.empty()) return;
    }
  } while (release_warp(warp));
}

// Returns true if all lanes made the same call and continue.
bool Block::release_warp(int warp) {
  int waiting = 0;
  const Thread* sample = nullptr;
  for (int t = first(warp); t < end(warp); ++t) {
    const Thread& thread = thread_[static_cast<size_t>(t)];
    if (thread.state != State::at_warp) continue;
    ++waiting;
    if (sample == nullptr) sample = &thread;
    if (thread.call != sample->call || thread.mask != sample->mask)
      fault_ = where() + ": lanes of a warp meet in different calls";
  }
  if (waiting == 0 || !fault_.empty()) return false;
  if (waiting < end(warp) - first(warp)) {
    fault_ = fmt::format("{}: {} of {} lanes of warp {} reached a shuffle, ballot or __syncwarp",
                         where(), waiting, end(warp) - first(warp), warp);
    return false;
  }
  for (int t = first(warp); t < end(warp); ++t)
    thread_[static_cast<size_t>(t)].state = State::ready;
  return true;
}

// Returns true if all threads reached __syncthreads and continue, and false if all ended or there
// is a fault.
bool Block::release_block() {
  int waiting = 0;
  for (int t = 0; t < threads_; ++t)
    waiting += thread_[static_cast<size_t>(t)].state == State::at_block;
  if (waiting == 0) return false;
  if (waiting < threads_) {
    fault_ = fmt::format("{}: {} of {} threads reached __syncthreads", where(), waiting, threads_);
    return false;
  }
  for (int t = 0; t < threads_; ++t) thread_[static_cast<size_t>(t)].state = State::ready;
  return true;
}

void Block::enter(int thread) {
  current_ = thread;
  threadIdx = thread_[static_cast<size_t>(thread)].index;
  here.lane = thread % kLanes;
}

// Makes the thread the current one. Returns where it goes on.
Context& Block::fiber_of(int t) {
  Thread& thread = thread_[static_cast<size_t>(t)];
  if (thread.state == State::fresh) {
    if (idle_.empty()) {
      fibers_.push_back(spare_fibers().take());
      idle_.push_back(fibers_.back().get());
    }
    thread.fiber = idle_.back();
    idle_.pop_back();
    if (!thread.fiber->parked) thread.fiber->context.start(fiber_entry);
    thread.fiber->parked = false;
  }
  enter(t);
  return thread.fiber->context;
}

// A thread that ends without waiting leaves its fiber to the next thread of its warp.
void Block::live() {
  for (;;) {
    Fiber* const fiber = thread_[static_cast<size_t>(current_)].fiber;
    for (;;) {
      (*work_->thread)();
      if (!copies_[static_cast<size_t>(current_)].empty())
        stop("it ends before the copies that it began");
      Thread& thread = thread_[static_cast<size_t>(current_)];
      thread.state = State::ended;
      const int next = next_in_warp(current_);
      if (next < 0 || thread_[static_cast<size_t>(next)].state != State::fresh) break;
      thread_[static_cast<size_t>(next)].fiber = fiber;
      enter(next);
    }
    fiber->parked = true;
    idle_.push_back(fiber);
    fiber->context.switch_to(scheduler_);
  }
}

// The next thread of the warp goes on at once; the scheduler does when there is none.
void Block::give_way(State state) {
  const int t = current_, next = next_in_warp(t);
  Thread& thread = thread_[static_cast<size_t>(t)];
  thread.state = state;
  thread.fiber->context.switch_to(next >= 0 && runnable(next) ? fiber_of(next) : scheduler_);
}

const uint64_t* Block::exchange(WarpCall call, unsigned mask, uint64_t value) {
  const auto t = static_cast<size_t>(current_);
  const int warp = current_ / kLanes;
  Thread& thread = thread_[t];
  if (call == WarpCall::sync && mask == ~0u) mask = lanes(warp);
  if (mask != lanes(warp))
    stop(fmt::format("the mask {:#x} of a warp whose lanes are {:#x}", mask, lanes(warp)));
  auto& given = given_[static_cast<size_t>(warp)][thread.odd];
  thread.odd = !thread.odd;
  given[t % kLanes] = value;
  thread.call = call;
  thread.mask = mask;
  give_way(State::at_warp);
  return given.data();
}

const Operands* Block::exchange(const Operands& operands) {
  const auto t = static_cast<size_t>(current_);
  auto& given = operands_[t / kLanes][thread_[t].odd];
  given[t % kLanes] = operands;
  exchange(WarpCall::product, ~0u, 0);
  return given.data();
}

void Block::copy_later(const Copy& copy) {
  for (const void* p : {static_cast<const void*>(copy.to), copy.from})
    if (reinterpret_cast<uintptr_t>(p) % copy.bytes != 0)
      stop(fmt::format("a copy of {} bytes from {} to {}", copy.bytes, copy.from, copy.to));
  std::memset(copy.to, 0xff, copy.bytes);
  copies_[static_cast<size_t>(current_)].push_back(copy);
}

void Block::wait_for_copies() {
  auto& copies = copies_[static_cast<size_t>(current_)];
  for (const Copy& copy : copies) {
    if (copy.there) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    } else {
      std::memset(copy.to, 0, copy.bytes);
    }
  }
  copies.clear();
}

void Block::sync() { give_way(State::at_block); }

void Block::stop(std::string why) {
  fault_ = fmt::format("{}, thread ({}, {}, {}): {}", where(), threadIdx.x, threadIdx.y,
                       threadIdx.z, why);
  abandoned_.switch_to(scheduler_);
  __builtin_unreachable();
}

}  // namespace

const uint64_t* exchange(WarpCall call, unsigned mask, uint64_t value) {
  return block_of_thread->exchange(call, mask, value);
}
const Operands* exchange_operands(const Operands& operands) {
  return block_of_thread->exchange(operands);
}
void copy_later(void* to, const void* from, int bytes, bool there) {
  block_of_thread->copy_later({to, from, static_cast<size_t>(bytes), there});
}
void wait_for_copies() { block_of_thread->wait_for_copies(); }
void sync_block() { block_of_thread->sync(); }
void stop_kernel(const char* why) { block_of_thread->stop(why); }

std::string run_block(const KernelWork& work, int64_t index) {
  if (block_of_thread == nullptr) block_of_thread = std::make_unique<Block>();
  return block_of_thread->run(work, index);
}

void rest_from_blocks() {
  if (block_of_thread != nullptr) block_of_thread->pause();
}

}  // namespace cuda_shim
