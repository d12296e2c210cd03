// Where a run is computed.
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

// MiB of scratch memory for a part of a library's attention backward on a GPU, and where memory
// allows.
inline constexpr int64_t kAttentionMib = 768, kLargeAttentionMib = 1280;

struct RuntimeSettings {
  std::optional<int64_t> ranks, threads;
  std::string device = "auto";
  std::string instruction_set = "auto";  // of the cpu device
  std::string distributed_backend = "auto";
  bool allow_nondeterministic = false;
  std::string gemm_tuning = "off";
  std::optional<int64_t> attention_workspace_mib;
  // Where that is not given: what a plan chose for the device's memory, and why
  // (training/plan/attention_workspace.h).
  int64_t planned_attention_mib = kAttentionMib;
  std::string planned_attention_cause;
  bool measure_peak = false;
  int64_t seed = 1234;
  double timeout_minutes = 10;            // of a call between ranks
  std::optional<double> timeout_seconds;  // in place of it
  double notice_seconds = comm::kNoticeSeconds;
  std::string launched_by;   // of join(): "2 processes of OMPI_COMM_WORLD_RANK"; "": by itself
  int launched_here = 0;     // of join() or plan_for(): processes on this host
  int launched_place = 0;    // of join(): this process among those on this host
  bool planned = false;      // nothing is run: ranks may be of many hosts
  bool usual_hosts = false;  // of plan_for_usual_hosts()

  void fields(Fields& fields);
  int rank_count() const { return static_cast<int>(ranks.value_or(1)); }
  int ranks_here() const {
    return launched_here > 0 ? launched_here : rank_count();
  }  // on this host
  int ranks_in_process() const { return launched_here > 0 ? 1 : rank_count(); }
  int threads_per_rank() const;  // default: cores / ranks, at least 1
  void add_device(Fields& fields);
  void add_instruction_set(Fields& fields);
  // From now on the kernels of the cpu device, in this process, keep to --instruction-set.
  void limit_instruction_set() const;
  // auto: cuda where the program found a GPU. Nothing is asked of a device that is named.
  DeviceKind device_kind() const;
  // What `auto` became and why, where there is something to say: a GPU was found, or the program
  // has the CUDA plugin and cannot use it.
  std::optional<SettingNote> device_note() const;
  // Of --instruction-set, where it is given.
  std::optional<SettingNote> instruction_set_note() const;
  // What --allow-nondeterministic does on this device.
  std::optional<SettingNote> order_note() const;
  // Whether GEMMs take the fastest of their algorithms: --gemm-tuning on, CUDA.
  bool tunes_gemms() const;
  // Of --attention-workspace-mib: that it does nothing here, or what a plan chose in its place.
  std::optional<SettingNote> attention_workspace_note() const;
  // What kernels of a training step may do and take.
  void limit_kernels(Stream& stream) const;
  // Of --gemm-tuning on: what it does here, or why it does nothing.
  std::optional<SettingNote> gemm_tuning_note() const;
  // Of a rank that is a thread of this process, or of the one that a process is: the ranks of a
  // host take its GPUs in turn. Throws Error where there is no GPU and --device is cuda.
  Device device_value(int rank = 0) const;
  comm::WaitLimits wait_limits() const;  // with calls between ranks
  comm::GpuBackend gpu_backend() const;
  // Of a process that a launcher started: --ranks is their number (throws Error where it is given
  // and is another), and the cores are divided among those on this host.
  void join(const comm::Processes& processes);
  // Of a plan that is not given the number of ranks on a machine: with GPUs 8 or fewer, so that all
  // machines have as many; else all.
  void plan_for_usual_hosts();
  // Which number that is, and how to say another; none where it was given, or is 1.
  std::optional<SettingNote> hosts_note() const;
  // Of a plan of a run on hosts with so many ranks each, one process each; the cores of a host are
  // divided among them.
  void plan_for(int64_t ranks_of_a_host);
  void check() const;
  void prepare_cuda() const;  // before it is asked for
};

}  // namespace megatron::settings
