// Lower bound for the time of a training step on this machine: each product at the best rate
// measured for its shape in this run, and the bytes of all other kernels at the copy bandwidth.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "device/stream.h"
#include "plan/recorder.h"

namespace megatron::bench {

// One shape of product, or attention's products over one shape, and the measured rates (FLOP/s; 0:
// not available in the library). own: the step's call. plain: a single oneDNN call on operands in
// the step's layout. packed: the same with b, or both, reordered beforehand. transposed: with a, b
// or both in the other layout, or c^T = b^T a^T.
struct ProductRates {
  std::string kernel, form;  // "gemm", "N T"
  int64_t m = 0, n = 0, k = 0, calls = 0;
  double flops = 0;  // per call
  double own = 0, plain = 0, packed = 0, transposed = 0;
  double best() const;
};

struct OtherKernel {
  std::string kernel;
  int64_t calls = 0;
  double bytes = 0;  // over all calls
};

struct StepFloor {
  std::vector<ProductRates> products;
  std::vector<OtherKernel> others;
  double bandwidth = 0;  // bytes/s
  double product_seconds() const;
  double other_seconds() const;
  double seconds() const { return product_seconds() + other_seconds(); }
  double flops() const;  // over all products
  // FLOP/s of the fastest call of any of them, by this program or the library.
  double fastest() const;
};

// Lower bound for a step of one rank with these kernel calls (training::step_work()). seconds:
// duration of each measurement.
StepFloor measure_floor(const plan::StepWork& work, Runtime& runtime, double seconds);

void print_floor(const StepFloor& floor, double step_seconds);
Json as_json(const StepFloor& floor, double step_seconds);

}  // namespace megatron::bench
