#include "training/runtime_settings.h"

#include <algorithm>
#include <thread>

#include "base/error.h"

namespace megatron::training {

void RuntimeSettings::fields(Fields& f) {
  f.add("ranks", &ranks,
        "ranks, as threads of this process, that divide the data; default 1, or those launched");
  f.add("threads", &threads, "CPU threads of each rank; default cores / ranks");
  f.add("device", &device, {"cpu", "reference"},
        "cpu, or reference: plain loops, slow, for checking");
  f.add("seed", &seed, "of initial weights, sample order and dropout");
}

int RuntimeSettings::threads_per_rank() const {
  if (threads) return static_cast<int>(*threads);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / rank_count());
}

Device RuntimeSettings::device_value() const {
  return {device == "reference" ? DeviceKind::reference : DeviceKind::cpu, 0};
}

parallel::Layout RuntimeSettings::layout() const {
  parallel::Layout layout;
  layout.tp = static_cast<int>(tensor_parallel);
  layout.pp = static_cast<int>(pipeline_parallel);
  layout.cp = static_cast<int>(context_parallel);
  layout.ep = static_cast<int>(expert_parallel);
  return layout;
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

void RuntimeSettings::check() const {
  for (const auto& [value, flag] : {std::pair{tensor_parallel, "tensor-model-parallel-size"},
                                    {pipeline_parallel, "pipeline-model-parallel-size"},
                                    {context_parallel, "context-parallel-size"},
                                    {expert_parallel, "expert-model-parallel-size"}}) {
    MG_CHECK(value == 1,
             "--{} is {}; this version divides the data only: use 1, and --ranks N for N "
             "data-parallel ranks",
             flag, value);
  }
  MG_CHECK(ranks.value_or(1) >= 1 && ranks.value_or(1) <= 1024,
           "--ranks is {}; it must lie in [1, 1024]", *ranks);
  MG_CHECK(threads.value_or(1) >= 1 && threads.value_or(1) <= 1024,
           "--threads is {}; it must lie in [1, 1024]", *threads);
  MG_CHECK(threads.value_or(1) * rank_count() <= 1024,
           "--threads {} of each of --ranks {} make {} threads; at most 1024 are possible: lower "
           "one of them",
           threads.value_or(1), rank_count(), threads.value_or(1) * rank_count());
  MG_CHECK(seed >= 0 && seed < (int64_t{1} << 32), "--seed is {}; it must lie in [0, 2^32)", seed);
}

}  // namespace megatron::training
