#include "training/runtime_settings.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "device/wing.h"

namespace megatron::training {

void RuntimeSettings::fields(Fields& f) {
  f.add("ranks", &ranks,
        "ranks, as threads of this process; default the product of the parallel sizes, or those "
        "launched");
  f.add("threads", &threads, "CPU threads of each rank; default cores / ranks");
  add_device(f);
  f.add("distributed-timeout-minutes", &timeout_minutes,
        "how long a call between ranks may take before all end with a report of what each does; 0: "
        "any time");
  f.add("seed", &seed, "of initial weights, sample order and dropout");
}

void RuntimeSettings::add_device(Fields& f) {
  f.add("device", &device, {"auto", "cuda", "cpu", "reference"},
        "auto: cuda where a GPU is found, else cpu; reference: plain loops, slow, for checking");
}

int RuntimeSettings::threads_per_rank() const {
  if (threads) return static_cast<int>(*threads);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / rank_count());
}

DeviceKind RuntimeSettings::device_kind() const {
  if (device == "reference") return DeviceKind::reference;
  if (device == "cuda") return DeviceKind::cuda;
  return device == "auto" && cuda_state().wing != nullptr ? DeviceKind::cuda : DeviceKind::cpu;
}

Device RuntimeSettings::device_value(int rank) const {
  const DeviceKind kind = device_kind();
  if (kind != DeviceKind::cuda) return {kind, 0};
  return {kind, rank % static_cast<int>(cuda_wing().devices().size())};
}

void RuntimeSettings::join(const comm::Processes& processes) {
  if (!processes.launched()) return;
  MG_CHECK(ranks.value_or(processes.size()) == processes.size(),
           "--ranks is {} and {} were launched; drop --ranks", *ranks, processes.description());
  ranks = processes.size();
  launched_by = processes.description();
  launched_here = processes.local_size();
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (!threads) threads = std::max(1, cores / processes.local_size());
}

void RuntimeSettings::plan_for(int64_t ranks_of_a_host) {
  MG_CHECK(ranks_of_a_host >= 1 && ranks_of_a_host <= 1024,
           "--nproc-per-node is {}; it must lie in [1, 1024]", ranks_of_a_host);
  launched_here = static_cast<int>(ranks_of_a_host);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (!threads) threads = std::max(1, cores / launched_here);
}

void RuntimeSettings::check() const {
  MG_CHECK(!planned || launched_here == 0 || rank_count() % launched_here == 0,
           "{} ranks cannot be divided among machines with --nproc-per-node {}: change one of them",
           rank_count(), launched_here);
  const bool many_hosts = planned || launched_here > 0;
  const int64_t most = many_hosts ? 65536 : 1024;
  MG_CHECK(ranks.value_or(1) >= 1 && ranks.value_or(1) <= most,
           "--ranks is {} (where it is not given, the product of the parallel sizes); {}it must "
           "lie in [1, {}]",
           *ranks, many_hosts ? "" : "as threads of one process ", most);
  MG_CHECK(threads.value_or(1) >= 1 && threads.value_or(1) <= 1024,
           "--threads is {}; it must lie in [1, 1024]", *threads);
  MG_CHECK(planned || threads.value_or(1) * ranks_here() <= 1024,
           "--threads {} of each of --ranks {} make {} threads; at most 1024 are possible: lower "
           "one of them",
           threads.value_or(1), ranks_here(), threads.value_or(1) * ranks_here());
  MG_CHECK(timeout_minutes >= 0 && timeout_minutes <= 1e6,
           "--distributed-timeout-minutes is {}; it must lie in [0, 1e6] (0: any time)",
           timeout_minutes);
  MG_CHECK(seed >= 0 && seed < (int64_t{1} << 32), "--seed is {}; it must lie in [0, 2^32)", seed);
}

}  // namespace megatron::training
