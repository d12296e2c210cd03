// Where a run is computed.
#pragma once

#include <optional>
#include <string>

#include "base/fields.h"
#include "comm/processes.h"
#include "device/device.h"

namespace megatron::training {

struct RuntimeSettings {
  std::optional<int64_t> ranks, threads;
  std::string device = "auto";
  int64_t seed = 1234;
  double timeout_minutes = 10;  // of a call between ranks
  std::string launched_by;      // of join(): "2 processes of OMPI_COMM_WORLD_RANK"; "": by itself
  int launched_here = 0;        // of join() or plan_for(): processes on this host
  bool planned = false;         // nothing is run: ranks may be of many hosts

  void fields(Fields& fields);
  int rank_count() const { return static_cast<int>(ranks.value_or(1)); }
  int ranks_here() const {
    return launched_here > 0 ? launched_here : rank_count();
  }  // on this host
  int threads_per_rank() const;  // default: cores / ranks, at least 1
  void add_device(Fields& fields);
  // auto: cuda where the program found a GPU. Nothing is asked of a device that is named.
  DeviceKind device_kind() const;
  // Of a rank of this host: ranks take its GPUs in turn. Throws Error where there is no GPU and
  // --device is cuda.
  Device device_value(int rank = 0) const;
  // Of a process that a launcher started: --ranks is their number (throws Error where it is given
  // and is another), and the cores are divided among those on this host.
  void join(const comm::Processes& processes);
  // Of a plan of a run on hosts with so many ranks each, one process each; the cores of a host are
  // divided among them.
  void plan_for(int64_t ranks_of_a_host);
  void check() const;
};

}  // namespace megatron::training
