#include "base/thread_pool.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/machine_limits.h"

namespace megatron {
namespace {

constexpr uint32_t kOpen = 1u << 31;
constexpr int kSpins = 5000;  // some 100-250 microseconds: most gaps between two kernels

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

// A job is open from the moment its fields are written until its blocks are taken. A worker that
// arrives while it is open registers at the gate, and the caller waits until those workers have
// left; a worker that wakes too late finds the gate closed and touches nothing, so nobody waits for
// it.
struct ThreadPool::State {
  // Adjacent blocks of a job; those from `next` on are not taken yet.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  int size = 1;
  int spins = 0;
  std::vector<std::thread> workers;
  std::mutex callers;                   // held by the thread whose job runs
  std::atomic<std::thread::id> caller;  // that thread

  const FunctionRef<void(int64_t, int)>* job = nullptr;
  std::vector<Share> shares;  // one per thread
  int shares_used = 1;
  std::mutex error_mutex;
  std::exception_ptr error;

  alignas(64) std::atomic<uint32_t> gate{0};   // kOpen | number of workers inside
  alignas(64) std::atomic<uint32_t> epoch{0};  // counts jobs; workers sleep on it
  std::atomic<bool> stopping{false};

  // Waits until done(value) is true; returns the value.
  template <class Done>
  uint32_t await(std::atomic<uint32_t>& word, Done done) const {
    for (int i = 0; i < spins; ++i) {
      const uint32_t value = word.load(std::memory_order_acquire);
      if (done(value)) return value;
      relax();
    }
    while (true) {
      const uint32_t value = word.load(std::memory_order_acquire);
      if (done(value)) return value;
      word.wait(value, std::memory_order_acquire);
    }
  }

  void divide(int64_t blocks, int parts) {
    shares_used = parts;
    for (int64_t i = 0; i < parts; ++i) {
      Share& share = shares[static_cast<size_t>(i)];
      share.next.store(blocks * i / parts, std::memory_order_relaxed);
      share.end = blocks * (i + 1) / parts;
    }
  }

  // Runs the blocks of the thread's own share, then takes what other threads have left.
  void take_blocks(int thread) {
    try {
      for (int i = 0; i < shares_used; ++i) {
        Share& share = shares[static_cast<size_t>((thread + i) % shares_used)];
        while (true) {
          const int64_t block = share.next.fetch_add(1, std::memory_order_relaxed);
          if (block >= share.end) break;
          (*job)(block, thread);
        }
      }
    } catch (...) {
      for (Share& share : shares) share.next.store(share.end, std::memory_order_relaxed);
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  }

  void work(int thread) {
    uint32_t seen = 0;
    while (true) {
      seen = await(epoch, [seen](uint32_t value) { return value != seen; });
      if (stopping.load(std::memory_order_relaxed)) return;
      if (gate.fetch_add(1, std::memory_order_acq_rel) & kOpen) take_blocks(thread);
      if (gate.fetch_sub(1, std::memory_order_acq_rel) == 1) gate.notify_one();
    }
  }

  // Index of the calling thread if it is working on a job of this pool, -1 if it comes from
  // outside.
  int thread_inside() const {
    const std::thread::id me = std::this_thread::get_id();
    if (caller.load(std::memory_order_relaxed) == me) return 0;
    for (size_t i = 0; i < workers.size(); ++i) {
      if (workers[i].get_id() == me) return static_cast<int>(i) + 1;
    }
    return -1;
  }

  void stop() {
    stopping.store(true, std::memory_order_relaxed);
    epoch.fetch_add(1, std::memory_order_release);
    epoch.notify_all();
    for (std::thread& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  MG_CHECK(threads >= 1, "the number of threads is {}; it must be at least 1", threads);
  State& s = *state_;
  s.size = threads;
  s.shares = std::vector<State::Share>(static_cast<size_t>(threads));
  s.spins = threads <= available_processors() ? kSpins : 0;
  try {
    s.workers.reserve(static_cast<size_t>(threads) - 1);
    for (int i = 1; i < threads; ++i) s.workers.emplace_back([&s, i] { s.work(i); });
  } catch (const std::exception& error) {
    s.stop();
    fail(
        "cannot start thread {} of {} of a rank ({}): use fewer --threads or --ranks, or raise "
        "the process limit (ulimit -u, pids.max of the cgroup)",
        s.workers.size() + 2, threads, error.what());
  }
}

ThreadPool::~ThreadPool() { state_->stop(); }

int ThreadPool::size() const { return state_->size; }

void ThreadPool::parallel_for(int64_t blocks, FunctionRef<void(int64_t block, int thread)> f) {
  run(blocks, 1, f);
}

void ThreadPool::parallel_shares(int64_t blocks, FunctionRef<void(int64_t block, int thread)> f) {
  run(blocks, size(), f);
}

void ThreadPool::run(int64_t blocks, int shares, FunctionRef<void(int64_t, int)> f) {
  State& s = *state_;
  const int inside = s.size == 1 ? 0 : s.thread_inside();
  if (inside >= 0) {
    for (int64_t block = 0; block < blocks; ++block) f(block, inside);
    return;
  }
  const std::lock_guard lock(s.callers);
  s.caller.store(std::this_thread::get_id(), std::memory_order_relaxed);
  s.job = &f;
  s.divide(blocks, shares);
  if (blocks > 1) {
    s.gate.fetch_or(kOpen, std::memory_order_release);
    s.epoch.fetch_add(1, std::memory_order_release);
    s.epoch.notify_all();
  }
  s.take_blocks(0);
  if (blocks > 1) {
    s.gate.fetch_and(~kOpen, std::memory_order_acq_rel);
    s.await(s.gate, [](uint32_t value) { return value == 0; });
  }
  s.caller.store(std::thread::id(), std::memory_order_relaxed);
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

}  // namespace megatron
