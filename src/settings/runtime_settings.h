// Settings of the device, threads and processes that compute a run.
#pragma once

#include <optional>
#include <string>

#include "base/fields.h"
#include "base/setting_note.h"
#include "comm/gpu/group.h"
#include "comm/processes.h"
#include "device/device.h"

namespace megatron {
class Stream;
}

namespace megatron::settings {

// MiB of scratch memory for part of a library's attention backward on a GPU: the usual size, and a
// larger one if memory allows.
inline constexpr int64_t kAttentionMib = 768, kLargeAttentionMib = 1280;

struct RuntimeSettings {
  std::optional<int64_t> ranks, threads;
  std::string device = "auto";
  std::string instruction_set = "auto";  // limit for the cpu device
  std::string distributed_backend = "auto";
  bool allow_nondeterministic = false;
  std::string gemm_tuning = "off";
  std::optional<int64_t> attention_workspace_mib;
  // If the flag is not given: the size that a plan chose for the device's memory, and why
  // (training/plan/make_plan.h).
  int64_t planned_attention_mib = kAttentionMib;
  std::string planned_attention_cause;
  bool measure_peak = false;
  int64_t seed = 1234;
  double timeout_minutes = 10;            // limit of a call between ranks
  std::optional<double> timeout_seconds;  // takes precedence
  double notice_seconds = comm::kNoticeSeconds;
  std::string launched_by;  // set by join(): "2 processes of OMPI_COMM_WORLD_RANK"; "": no launcher
  int launched_here = 0;    // set by join() or plan_for(): processes on this host
  int launched_place = 0;   // set by join(): index of this process on this host
  bool planned = false;     // only a plan: ranks may be on many hosts
  bool usual_hosts = false;  // set by plan_for_usual_hosts()

  void fields(Fields& fields);
  int rank_count() const { return static_cast<int>(ranks.value_or(1)); }
  int ranks_here() const {
    return launched_here > 0 ? launched_here : rank_count();
  }  // on this host
  int ranks_in_process() const { return launched_here > 0 ? 1 : rank_count(); }
  int threads_per_rank() const;  // default: cores / ranks, at least 1
  void add_device(Fields& fields);
  void add_instruction_set(Fields& fields);
  // Restricts the cpu device's kernels in this process to --instruction-set.
  void limit_instruction_set() const;
  // auto: cuda if the program found a GPU. An explicitly named device is not queried.
  DeviceKind device_kind() const;
  // Says what `auto` was resolved to and why, if a GPU was found, or if the program has the CUDA
  // plugin and cannot use it.
  std::optional<SettingNote> device_note() const;
  // Note on --instruction-set, if given.
  std::optional<SettingNote> instruction_set_note() const;
  // Note on the effect of --allow-nondeterministic on this device.
  std::optional<SettingNote> order_note() const;
  // True if GEMMs use the fastest of their algorithms: --gemm-tuning on, CUDA.
  bool tunes_gemms() const;
  // Note on --attention-workspace-mib: that it has no effect here, or what a plan chose instead.
  std::optional<SettingNote> attention_workspace_note() const;
  // Sets the limits of a training step's kernels.
  void limit_kernels(Stream& stream) const;
  // Note on --gemm-tuning on: what it does here, or why it has no effect.
  std::optional<SettingNote> gemm_tuning_note() const;
  // Device of a rank, which is a thread of this process or the whole process: the ranks of a host
  // take its GPUs in turn. Throws Error if --device is cuda and there is no GPU.
  Device device_value(int rank = 0) const;
  comm::WaitLimits wait_limits() const;  // for calls between ranks
  comm::GpuBackend gpu_backend() const;
  // Applies the launcher's process count: --ranks becomes that number (throws Error if a different
  // one is given), and the host's cores are divided among its processes.
  void join(const comm::Processes& processes);
  // Chooses ranks per machine for a plan that is not given them: with GPUs at most 8, evenly
  // divided; else all ranks on one machine.
  void plan_for_usual_hosts();
  // Note on the number of ranks per host and how to set another; none if it was given or is 1.
  std::optional<SettingNote> hosts_note() const;
  // Plans for hosts with `ranks_of_a_host` ranks each, one process per rank; a host's cores are
  // divided among them.
  void plan_for(int64_t ranks_of_a_host);
  void check() const;
  void prepare_cuda() const;  // must precede the first request for CUDA
};

}  // namespace megatron::settings
