// The machine's measured matrix-product rate, the yardstick of every speed that is printed.
#pragma once

#include <string>
#include <vector>

#include "base/dtype.h"
#include "device/stream.h"

namespace megatron::training {

struct PeakShape {
  int64_t m, n, k;
  double rate = 0;  // FLOP/s, the best sustained in this sampling
};

// Samples products of at least five large shapes for about `seconds` in all and returns each one's
// best rate.
std::vector<PeakShape> sample_gemm_rates(Runtime& runtime, DType type, double seconds);
double best_rate(const std::vector<PeakShape>& shapes);

// Peak over several samplings, and how far they lie apart: (largest - smallest) / largest.
class PeakMeter {
 public:
  PeakMeter(Runtime& runtime, DType type) : runtime_(runtime), type_(type) {}
  void sample(double seconds);
  double peak() const;  // FLOP/s
  double spread() const;

 private:
  Runtime& runtime_;
  DType type_;
  std::vector<double> samples_;
};

}  // namespace megatron::training
