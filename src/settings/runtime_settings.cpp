#include "settings/runtime_settings.h"

#include <algorithm>

#include "base/error.h"
#include "base/machine_limits.h"
#include "device/cuda_plugin.h"
#include "device/stream.h"
#include "kernels/instruction_set.h"

namespace megatron::settings {

void RuntimeSettings::fields(Fields& f) {
  f.begin_group("parallelism");
  f.add("ranks", &ranks,
        "number of ranks, as threads of this process; default the minimum for the parallel sizes, "
        "or the number of launched processes");
  f.begin_group("device");
  f.add("threads", &threads, "CPU threads per rank; default cores / ranks");
  add_device(f);
  f.begin_group("parallelism");
  f.add("distributed-backend", &distributed_backend, {"auto", "nccl", "gloo"},
        "communication between GPU ranks: NCCL, or through host memory (gloo); auto: NCCL if each "
        "rank has its own GPU and finds NCCL");
  f.begin_group("device");
  f.add_switch("allow-nondeterministic", &allow_nondeterministic, true,
               "on a GPU, allow faster kernels whose results differ in the last bits from run to "
               "run (cuDNN's attention backward, split-K GEMMs)");
  f.add("attention-workspace-mib", &attention_workspace_mib,
        fmt::format("on a GPU, scratch memory in MiB for cuDNN's attention backward in bf16 and "
                    "fp16; it is split into as few parts as this memory allows, with the same "
                    "results; default {} if the run then fits on the GPU, else {}",
                    kLargeAttentionMib, kAttentionMib));
  f.add(
      "gemm-tuning", &gemm_tuning, {"off", "on"},
      "on: before the first step, time cuBLASLt's algorithms for each GEMM of a step, and use the "
      "fastest on all ranks; the choices are stored in the --save folder and its checkpoints, and "
      "resumed runs reuse them; off: use the algorithm that cuBLASLt proposes first");
  f.add_switch(
      "measure-peak", &measure_peak, true,
      "measure the machine's GEMM peak now instead of using the cached result of an earlier run "
      "(~/.cache/megatron/rates)");
  f.begin_group("parallelism");
  f.add("distributed-timeout-minutes", &timeout_minutes,
        "timeout of a communication call, after which all ranks end with a report of what each "
        "is doing; 0: none")
      .of([this] {
        return timeout_seconds ? "--distributed-timeout-seconds-after-init takes precedence" : "";
      });
  f.add("distributed-timeout-seconds-after-init", &timeout_seconds,
        "timeout of calls to other ranks in seconds; takes precedence over "
        "--distributed-timeout-minutes");
  f.replace({"distributed-timeout-minutes"}, {"distributed-timeout-seconds-after-init"});
  f.add("distributed-notice-seconds", &notice_seconds,
        "log which ranks are waiting for which after a communication call has taken this long, and "
        "again after 2, 4, 8 times as long; the run continues; 0: never");
  f.begin_group("model");
  f.add("seed", &seed, "random seed of initial weights, sample order and dropout");
  f.common({"ranks", "threads", "device"});
}

void RuntimeSettings::add_device(Fields& f) {
  f.add("device", &device, {"auto", "cuda", "cpu", "reference"},
        "auto: cuda if a GPU is found, else cpu; reference: plain loops, slow, for checking");
  add_instruction_set(f);
}

void RuntimeSettings::add_instruction_set(Fields& f) {
  f.add("instruction-set", &instruction_set, {"auto", "avx2"},
        "instruction set of CPU kernels; auto: the newest that the processor supports; avx2: "
        "compute as on a processor without AVX-512 and AMX, bit for bit");
}

int RuntimeSettings::threads_per_rank() const {
  if (threads) return static_cast<int>(*threads);
  return std::max(1, available_processors() / rank_count());
}

void RuntimeSettings::limit_instruction_set() const {
  if (instruction_set == "avx2") kernels::limit_instruction_set(kernels::InstructionSet::avx2);
}

DeviceKind RuntimeSettings::device_kind() const {
  prepare_cuda();
  if (device == "reference") return DeviceKind::reference;
  if (device == "cuda") return DeviceKind::cuda;
  return device == "auto" && cuda_state().plugin != nullptr ? DeviceKind::cuda : DeviceKind::cpu;
}

void RuntimeSettings::prepare_cuda() const {
  const bool on_gpus = !planned && (device == "auto" || device == "cuda");
  if (on_gpus && rank_count() > 1 && distributed_backend != "gloo") load_kernels_at_once();
}

std::optional<SettingNote> RuntimeSettings::device_note() const {
  if (device != "auto") return std::nullopt;
  prepare_cuda();
  const CudaState& cuda = cuda_state();
  if (cuda.plugin != nullptr)
    return SettingNote{"device", "cuda",
                       fmt::format("a GPU was found: {}; {}", cuda.plugin->devices()[0].name,
                                   cuda.plugin->versions())};
  if (cuda.built) return SettingNote{"device", "cpu", "CUDA cannot be used: " + cuda.why_not};
  return std::nullopt;
}

std::optional<SettingNote> RuntimeSettings::instruction_set_note() const {
  if (instruction_set == "auto") return std::nullopt;
  return SettingNote{"instruction-set", instruction_set,
                     "CPU kernels do not use newer instructions of the processor"};
}

std::optional<SettingNote> RuntimeSettings::order_note() const {
  if (!allow_nondeterministic) return std::nullopt;
  const DeviceKind kind = device_kind();
  if (kind == DeviceKind::cuda)
    return SettingNote{
        "allow-nondeterministic", "true",
        "gradients of attention and weights may differ in the last bits from run to run"};
  return SettingNote{"allow-nondeterministic", "false",
                     fmt::format("{} is always deterministic", name(kind))};
}

std::optional<SettingNote> RuntimeSettings::attention_workspace_note() const {
  constexpr const char* kFlag = "attention-workspace-mib";
  if (!attention_workspace_mib) {
    if (planned_attention_cause.empty()) return std::nullopt;
    return SettingNote{kFlag, fmt::format("{}", planned_attention_mib), planned_attention_cause};
  }
  const DeviceKind kind = device_kind();
  if (kind == DeviceKind::cuda) return std::nullopt;
  return SettingNote{kFlag, "none", fmt::format("{} does not use cuDNN", name(kind))};
}

void RuntimeSettings::limit_kernels(Stream& stream) const {
  stream.allow_nondeterministic(allow_nondeterministic);
  stream.limit_attention_workspace(attention_workspace_mib.value_or(planned_attention_mib) << 20);
}

bool RuntimeSettings::tunes_gemms() const {
  return gemm_tuning == "on" && device_kind() == DeviceKind::cuda;
}

std::optional<SettingNote> RuntimeSettings::gemm_tuning_note() const {
  if (gemm_tuning == "off") return std::nullopt;
  if (tunes_gemms())
    return SettingNote{
        "gemm-tuning", "on",
        "another run from step 0 may choose other algorithms, and then differs in the last bits"};
  return SettingNote{"gemm-tuning", "off",
                     fmt::format("{} has one algorithm for each GEMM", name(device_kind()))};
}

Device RuntimeSettings::device_value(int rank) const {
  const DeviceKind kind = device_kind();
  if (kind != DeviceKind::cuda) return {kind, 0};
  const int place = launched_by.empty() ? rank : launched_place;
  return {kind, place % static_cast<int>(cuda_plugin().devices().size())};
}

comm::WaitLimits RuntimeSettings::wait_limits() const {
  return {timeout_seconds.value_or(60 * timeout_minutes), notice_seconds};
}

comm::GpuBackend RuntimeSettings::gpu_backend() const {
  return distributed_backend == "nccl"   ? comm::GpuBackend::nccl
         : distributed_backend == "gloo" ? comm::GpuBackend::gloo
                                         : comm::GpuBackend::automatic;
}

void RuntimeSettings::join(const comm::Processes& processes) {
  if (!processes.launched()) return;
  MG_CHECK(ranks.value_or(processes.size()) == processes.size(),
           "--ranks is {}, but {} were launched; drop --ranks, or give --ranks {}", *ranks,
           processes.description(), processes.size());
  ranks = processes.size();
  launched_by = processes.description();
  launched_here = processes.local_size();
  launched_place = processes.local_rank();
  const int cores = available_processors();
  if (!threads) threads = std::max(1, cores / processes.local_size());
}

void RuntimeSettings::plan_for(int64_t ranks_of_a_host) {
  MG_CHECK(ranks_of_a_host >= 1 && ranks_of_a_host <= 1024,
           "--nproc-per-node is {}; it must lie in [1, 1024]", ranks_of_a_host);
  launched_here = static_cast<int>(ranks_of_a_host);
  const int cores = available_processors();
  if (!threads) threads = std::max(1, cores / launched_here);
}

void RuntimeSettings::plan_for_usual_hosts() {
  if (launched_here > 0) return;
  usual_hosts = true;
  constexpr int kGpusOfAMachine = 8;
  if (device_kind() != DeviceKind::cuda || rank_count() <= kGpusOfAMachine) return;
  int here = kGpusOfAMachine;
  while (rank_count() % here != 0) --here;
  plan_for(here);
}

std::optional<SettingNote> RuntimeSettings::hosts_note() const {
  if (!planned || !usual_hosts || rank_count() == 1) return std::nullopt;
  return SettingNote{"nproc-per-node", fmt::format("{}", ranks_here()),
                     launched_here > 0
                         ? "as is usual for GPU machines; give the flag if yours differ"
                         : "all ranks are assumed to be on this machine; give the flag for "
                           "several machines"};
}

void RuntimeSettings::check() const {
  MG_CHECK(!planned || launched_here == 0 || rank_count() % launched_here == 0,
           "{} ranks cannot be divided among machines with --nproc-per-node {}: change one of them",
           rank_count(), launched_here);
  const bool many_hosts = planned || launched_here > 0;
  const int64_t most = many_hosts ? 65536 : 1024;
  MG_CHECK(
      ranks.value_or(1) >= 1 && ranks.value_or(1) <= most,
      "--ranks is {} (by default the minimum for the parallel sizes); {}it must lie in [1, {}]",
      *ranks, many_hosts ? "" : "as threads of one process ", most);
  MG_CHECK(threads.value_or(1) >= 1 && threads.value_or(1) <= 1024,
           "--threads is {}; it must lie in [1, 1024]", *threads);
  MG_CHECK(planned || threads.value_or(1) * ranks_here() <= 1024,
           "--threads {} for each of {} ranks makes {} threads; at most 1024 are possible: lower "
           "--threads or the number of ranks",
           threads.value_or(1), ranks_here(), threads.value_or(1) * ranks_here());
  MG_CHECK(attention_workspace_mib.value_or(1) >= 1 && attention_workspace_mib.value_or(1) <= 65536,
           "--attention-workspace-mib is {}; it must lie in [1, 65536]", *attention_workspace_mib);
  MG_CHECK(timeout_minutes >= 0 && timeout_minutes <= 1e6,
           "--distributed-timeout-minutes is {}; it must lie in [0, 1e6] (0: no timeout)",
           timeout_minutes);
  MG_CHECK(!timeout_seconds || (*timeout_seconds >= 0 && *timeout_seconds <= 6e7),
           "--distributed-timeout-seconds-after-init is {}; it must lie in [0, 6e7] (0: no "
           "timeout)",
           *timeout_seconds);
  MG_CHECK(notice_seconds >= 0 && notice_seconds <= 6e7,
           "--distributed-notice-seconds is {}; it must lie in [0, 6e7] (0: no notice)",
           notice_seconds);
  MG_CHECK(seed >= 0 && seed < (int64_t{1} << 32), "--seed is {}; it must lie in [0, 2^32)", seed);
}

}  // namespace megatron::settings
