// `megatron bench step`: the training step against its plan, the machine's peak and the step's floor.
#pragma once

#include <cstdint>
#include <optional>

#include "settings/settings.h"

namespace megatron::bench {

struct StepBench {
  settings::TrainSettings settings;
  bool floor = true, kernels_only = false, json = false;
  double floor_seconds = 0.12;
  std::optional<int64_t> plan_runs;
  std::optional<int64_t> untimed;

  Fields fields();  // those of training first
  // Of the shape and the number of steps, for a device.
  void set_defaults(DeviceKind device);
  // Mock data is for runs without data of their own.
  void use_given_data();
  void check() const;  // throws Error naming the flag
  int64_t estimates() const;
  int64_t untimed_steps() const;
};

// Prints what it measured and returns the exit code. The flags' values are in `step`.
int measure_step(StepBench& step);

}  // namespace megatron::bench
