// The kernels of a training step: each call is measured by itself and compared with the machine's
// limits.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "device/stream.h"
#include "kernels/cost.h"
#include "plan/recorder.h"

namespace megatron::bench {

// Rates with which a call is compared.
struct Limits {
  double peak = 0, bandwidth = 0;  // FLOP/s and bytes/s
};

// Calls of one kernel on operands of one shape.
struct StepKernel {
  std::string kernel, shape;  // "gemm", "N T 4096 x 6144 x 4096 bf16"
  int64_t calls = 0;          // per step
  kernels::Cost cost;         // per call
  double seconds = 0;         // per call; each call has its operands elsewhere in memory
  double all() const { return static_cast<double>(calls) * seconds; }
  // The longer of the times needed for its products and for its bytes.
  double floor(const Limits& limits) const;
  bool is_product(const Limits& limits) const;
};

struct StepKernels {
  Limits limits;
  std::vector<StepKernel> kernels;  // slowest first
  double seconds() const;           // over all calls
  double floor() const;
};

// Measures the kernels of a step of one rank (training::step_work()). seconds: duration of each
// measurement.
StepKernels measure_step_kernels(const plan::StepWork& work, Runtime& runtime, const Limits& limits,
                                 double seconds);

// step_seconds: duration of a step; nullopt if no step was made.
void print_step_kernels(const StepKernels& kernels, std::optional<double> step_seconds);
Json as_json(const StepKernels& kernels);

}  // namespace megatron::bench
