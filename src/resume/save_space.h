// Disk space required by a run's checkpoints.
#pragma once

#include <cstdint>
#include <string>

#include "settings/checkpoint_settings.h"

namespace megatron::resume {

// Maximum number of checkpoints on the disk at once in a run from step `first` to step `last`: all
// that it saves, or with --save-keep those kept, the one written before an older one is removed,
// and those of --save-retain-interval.
int64_t most_checkpoints(const settings::CheckpointSettings& settings, int64_t first, int64_t last);

struct SaveSpace {
  std::string folder;  // the --save directory
  int64_t checkpoint_bytes = 0, checkpoints = 0, free_bytes = 0;

  double needed_bytes() const {
    return static_cast<double>(checkpoint_bytes) * static_cast<double>(checkpoints);
  }
  bool fits() const { return needed_bytes() <= static_cast<double>(free_bytes); }
  // One line for the log; if they do not fit, it says what to change.
  std::string text() const;
};

}  // namespace megatron::resume
