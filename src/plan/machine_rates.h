// The machine's measured rates of matrix products and of memory, the yardsticks of every speed that
// is printed.
#pragma once

#include <string>
#include <vector>

#include "base/dtype.h"
#include "device/stream.h"
#include "tensor/tensor.h"

namespace megatron::plan {

// Where the samples of a limit lie further apart, nothing may be claimed of the run.
inline constexpr double kNoisySpread = 0.15;

struct PeakShape {
  int64_t m, n, k;
  double rate = 0;  // FLOP/s, the best sustained in this sampling
};

// Samples products of at least five large shapes, in the form of a forward and of an input's
// gradient, for about `seconds` in all and returns each shape's best rate.
std::vector<PeakShape> sample_gemm_rates(Runtime& runtime, DType type, double seconds);
double best_rate(const std::vector<PeakShape>& shapes);

// Bytes read and written a second while the kernel table's `copy` moves 256 MB of f32 from one
// tensor to another by all threads, the best of `rounds`. As in STREAM (McCalpin, 1995), each byte
// counts once where it is read and once where it is written; the copy writes past the caches, so no
// line is read in order to be written. Takes 512 MB of the scratch arena.
double copy_bandwidth(Runtime& runtime, int rounds = 5);

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

// Copy bandwidth over several samplings, likewise. Holds its 512 MB.
class BandwidthMeter {
 public:
  explicit BandwidthMeter(Runtime& runtime);
  double sample(int rounds = 3);  // gives what it found
  double best() const;            // bytes/s
  double spread() const;

 private:
  Runtime& runtime_;
  Tensor from_, to_;
  std::vector<double> samples_;
};

}  // namespace megatron::plan
