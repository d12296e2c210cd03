// The machine's measured rates of matrix products and of memory, which all printed speeds are
// compared with.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "device/stream.h"
#include "plan/call_clock.h"
#include "tensor/tensor.h"

namespace megatron::plan {

// If the samples of a limit are spread wider than this, no efficiency is reported.
inline constexpr double kNoisySpread = 0.15;

struct PeakShape {
  int64_t m, n, k;
  double rate = 0;  // FLOP/s: the best rate sustained in this sampling
};

// Samples products of large shapes, in the form of a forward and of an input's gradient, for about
// `seconds` in total and returns each shape's best rate. On a host there are at least five shapes;
// on a GPU cubes of random numbers (a GPU's clock depends on how many bits change), each twice the
// size of the one before, up to 8192 or the first that takes a millisecond.
std::vector<PeakShape> sample_gemm_rates(Runtime& runtime, DType type, double seconds);
double best_rate(const std::vector<PeakShape>& shapes);

// Best rate of oneDNN's products over the shapes of a host, with the second factor in the layout
// that the library prefers, for about `seconds` in total. 0 if there is nothing to compare with: on
// a GPU, in a build without oneDNN, and for a type that it does not multiply on this processor.
double library_gemm_rate(Runtime& runtime, DType type, double seconds);

// Bytes read and written per second while the kernel table's `copy` moves 256 MB of f32 from one
// tensor to another with all threads; the best of `rounds`. As in STREAM (McCalpin, 1995), each
// byte counts once when it is read and once when it is written; the copy bypasses the caches when
// writing, so no line is read in order to be written. Takes 512 MB of the scratch arena. On a GPU
// it moves as much as it can in 0.2 ms, at most 1 GB.
double copy_bandwidth(Runtime& runtime, int rounds = 5);

// Peak over several samplings, and their spread: (largest - smallest) / largest.
class PeakMeter {
 public:
  PeakMeter(Runtime& runtime, DType type) : runtime_(&runtime), type_(type) {}
  // Makes a runtime for each sampling, so that no memory is held between them.
  PeakMeter(Device device, int threads, DType type)
      : device_(device), threads_(threads), type_(type) {}
  void sample(double seconds);
  DType type() const { return type_; }
  double peak() const;  // FLOP/s
  double spread() const;

 private:
  Runtime* runtime_ = nullptr;
  Device device_;
  int threads_ = 1;
  DType type_;
  std::vector<double> samples_;
};

// The same for copy bandwidth. Holds its two tensors.
class BandwidthMeter {
 public:
  explicit BandwidthMeter(Runtime& runtime);
  double sample(int rounds = 3);  // returns what it measured
  double best() const;            // bytes/s
  double spread() const;

  // Bytes per second while all threads read one of the tensors and write nothing; only on a host.
  // Less than a copy moves if reading and writing have separate paths to memory.
  double sample_reading(int rounds = 3);
  double best_reading() const;  // 0 if there is no sample

 private:
  void make(int64_t bytes);
  double copy_once();
  double read_once();

  Runtime& runtime_;
  CallClock clock_;
  Tensor from_, to_;
  std::vector<double> samples_, reading_;
  std::atomic<uint64_t> read_{0};  // result of reads, which keeps them from being optimized away
};

}  // namespace megatron::plan
