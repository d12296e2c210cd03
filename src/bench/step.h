// `megatron bench step`: compares the training step with its plan, the machine's peak and the
// step's floor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "settings/settings.h"
#include "training/task.h"

namespace megatron::bench {

struct StepBench {
  settings::TrainSettings settings;
  bool floor = true, kernels_only = false, json = false;
  double floor_seconds = 0.12;
  std::optional<int64_t> plan_runs;
  std::optional<int64_t> untimed;

  Fields fields();  // the training fields come first
  // Sets the device's defaults of shape and number of steps.
  void set_defaults(DeviceKind device);
  // Uses mock data unless flags name data, and a model that fits --task.
  void settle();
  void check() const;  // throws Error naming the flag
  int64_t estimates() const;
  int64_t untimed_steps() const;
  std::shared_ptr<const training::Task> task() const;  // of --task; null: next tokens
};

// Prints the measurements and returns the exit code. `step` holds the values of the flags.
int measure_step(StepBench& step);

}  // namespace megatron::bench
