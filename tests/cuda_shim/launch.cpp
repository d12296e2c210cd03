// Kernel launches: limits, and distribution of blocks over OS threads.
#include <fmt/core.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <thread>

#include "machine.h"

namespace cuda_shim {
namespace {

// A kernel whose blocks are taken by any free thread.
struct Job {
  KernelWork work;
  int64_t blocks = 0;
  std::atomic<int64_t> next = 0, done = 0;
  std::mutex mutex;
  std::string fault;

  void take_blocks() {
    for (int64_t i = next++; i < blocks; i = next++) {
      const bool stopped = [&] {
        const std::lock_guard lock(mutex);
        return !fault.empty();
      }();
      std::string why = stopped ? "" : run_block(work, work.descending ? blocks - 1 - i : i);
      if (!why.empty()) {
        const std::lock_guard lock(mutex);
        if (fault.empty()) fault = std::move(why);
      }
      if (++done == blocks) done.notify_all();
    }
    rest_from_blocks();
  }
};

// Helper threads, which live as long as the program.
class Helpers {
 public:
  // The caller also runs blocks, and does not wait for helpers that have not started.
  void run(const std::shared_ptr<Job>& job, int helpers) {
    {
      const std::lock_guard lock(mutex_);
      while (static_cast<int>(threads_) < helpers) {
        ++threads_;
        std::thread([this] { help(); }).detach();
      }
      job_ = job;
      ++number_;
    }
    wake_.notify_all();
    job->take_blocks();
    for (int64_t done = job->done; done < job->blocks; done = job->done) job->done.wait(done);
    const std::lock_guard lock(mutex_);
    job_ = nullptr;
  }

 private:
  void help() {
    uint64_t seen = 0;
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return number_ != seen; });
        seen = number_;
        job = job_;
      }
      if (job != nullptr) job->take_blocks();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::shared_ptr<Job> job_;
  uint64_t number_ = 0;
  int threads_ = 0;
};

constexpr int kMaxHostThreads = 8;
constexpr int64_t kWorthHelp = 4096;  // number of threads of a kernel

// Kernel names are cached, since finding one reads a file.
const std::string& known_name(const void* kernel) {
  static auto* const names = new std::map<const void*, std::string>;
  std::string& name = (*names)[kernel];
  if (name.empty()) name = "kernel " + kernel_name(kernel);
  return name;
}

bool zero(uint3 v) { return v.x == 0 || v.y == 0 || v.z == 0; }

// Returns the reason to refuse a launch, or an empty string.
std::string refusal(const cudaLaunchConfig_t& c, const void* kernel) {
  const auto threads = uint64_t{c.blockDim.x} * c.blockDim.y * c.blockDim.z;
  if (zero(c.gridDim) || c.gridDim.y > 65535 || c.gridDim.z > 65535 || c.gridDim.x > 2147483647u)
    return fmt::format("{} x {} x {} blocks", c.gridDim.x, c.gridDim.y, c.gridDim.z);
  if (zero(c.blockDim) || threads > kMaxThreads || c.blockDim.z > 64)
    return fmt::format("{} threads in a block", threads);
  const Machine& m = machine();
  const auto allowed = m.dynamic_shared.find(kernel);
  const size_t limit = allowed == m.dynamic_shared.end() ? kDynamicShared : allowed->second;
  if (c.dynamicSmemBytes > limit)
    return fmt::format("{} bytes of dynamic shared memory; it may have {}", c.dynamicSmemBytes,
                       limit);
  return "";
}

}  // namespace

std::string run_kernel(const KernelWork& work, int threads) {
  auto job = std::make_shared<Job>();
  job->work = work;
  job->blocks = int64_t{work.grid.x} * work.grid.y * work.grid.z;
  const int64_t all = job->blocks * work.block.x * work.block.y * work.block.z;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (threads <= 0) threads = std::min(cores, kMaxHostThreads);
  if (threads == 1 || job->blocks == 1 || all < kWorthHelp) {
    job->take_blocks();
  } else {
    static auto* const helpers = new Helpers;
    helpers->run(job, threads - 1);
  }
  return job->fault;
}

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel,
                   std::function<void()> thread) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (m.sticky != cudaSuccess) return m.sticky;
  if (const std::string why = refusal(config, kernel); !why.empty())
    return refuse(cudaErrorInvalidConfiguration,
                  fmt::format("kernel {}: {}", kernel_name(kernel), why));
  const cudaStream_t stream = stream_of(config.stream);
  if (stream != nullptr && stream->device != current_device())
    return refuse(cudaErrorInvalidResourceHandle,
                  fmt::format("kernel {}: a stream of device {} while device {} is current",
                              kernel_name(kernel), stream->device, current_device()));
  if (!m.launches.contains(kernel) && !has_some_left()) return cudaErrorMemoryAllocation;
  ++m.launches[kernel];
  return enqueue(config.stream, m.settings.hang.empty() ? "kernel" : known_name(kernel),
                 [work = KernelWork{.kernel = kernel,
                                    .grid = config.gridDim,
                                    .block = config.blockDim,
                                    .dynamic_shared = config.dynamicSmemBytes},
                  thread = std::move(thread)]() mutable {
                   const Settings& settings = machine().settings;
                   work.thread = &thread;
                   work.descending = settings.descending != 0;
                   const std::string why = run_kernel(work, static_cast<int>(settings.threads));
                   if (!why.empty()) stick(cudaErrorIllegalAddress, why);
                 });
}

}  // namespace cuda_shim

using namespace cuda_shim;

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      value > m.settings.shared)
    return refuse(cudaErrorInvalidValue,
                  fmt::format("kernel {}: {} bytes of dynamic shared memory; at most {}",
                              kernel_name(kernel), value, m.settings.shared));
  m.dynamic_shared[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}

int64_t shim_launches(const char* text) {
  const Lock lock(machine().mutex);
  int64_t count = 0;
  for (const auto& [kernel, launches] : machine().launches)
    if (known_name(kernel).find(text) != std::string::npos) count += launches;
  return count;
}
