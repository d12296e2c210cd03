// The disk space that a run's checkpoints take.
#pragma once

#include <cstdint>
#include <string>

#include "settings/checkpoint_settings.h"

namespace megatron::resume {

// Checkpoints of a run from step `first` to step `last` that are on the disk at once, at most: all
// that it saves, or with --save-keep those kept and the one that is written before an older one is
// removed, and those of --save-retain-interval.
int64_t most_checkpoints(const settings::CheckpointSettings& settings, int64_t first, int64_t last);

struct SaveSpace {
  std::string folder;  // of --save
  int64_t checkpoint_bytes = 0, checkpoints = 0, free_bytes = 0;

  double needed_bytes() const {
    return static_cast<double>(checkpoint_bytes) * static_cast<double>(checkpoints);
  }
  bool fits() const { return needed_bytes() <= static_cast<double>(free_bytes); }
  // One line for the log; what to change where they do not fit.
  std::string text() const;
};

}  // namespace megatron::resume
