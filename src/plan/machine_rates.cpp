#include "plan/machine_rates.h"

#include <algorithm>

#include "base/clock.h"
#include "kernels/table.h"

namespace megatron::plan {
namespace {

constexpr double kWindow = 0.05;  // seconds of products in a row that count as sustained
constexpr int64_t kCopied = int64_t{256} << 20;

double spread_of(const std::vector<double>& samples) {
  if (samples.empty()) return 0;
  const auto [least, most] = std::ranges::minmax(samples);
  return (most - least) / most;
}

double best_of(Runtime& runtime, DType type, const PeakShape& shape, bool transpose_b,
               double seconds) {
  Arena& arena = runtime.arena(MemoryClass::scratch);
  const kernels::Table& table = kernels::table(runtime.stream());
  Tensor a = Tensor::empty(arena, {shape.m, shape.k}, type, "peak.a");
  Tensor b = transpose_b ? Tensor::empty(arena, {shape.n, shape.k}, type, "peak.b")
                         : Tensor::empty(arena, {shape.k, shape.n}, type, "peak.b");
  Tensor out = Tensor::empty(arena, {shape.m, shape.n}, type, "peak.out");
  table.fill({.out = a, .value = 0.5}, runtime.stream());
  table.fill({.out = b, .value = 0.25}, runtime.stream());
  const double flops = 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
                       static_cast<double>(shape.k);
  double best = 0;
  const double end = now_seconds() + seconds;
  do {
    const double begin = now_seconds();
    double elapsed = 0;
    int products = 0;
    do {
      table.gemm({.a = a, .b = b, .out = out, .transpose_b = transpose_b}, runtime.stream());
      runtime.stream().synchronize();
      ++products;
      elapsed = now_seconds() - begin;
    } while (elapsed < kWindow);
    best = std::max(best, flops * products / elapsed);
  } while (now_seconds() < end);
  return best;
}

}  // namespace

std::vector<PeakShape> sample_gemm_rates(Runtime& runtime, DType type, double seconds) {
  std::vector<PeakShape> shapes = {{1024, 1024, 1024},
                                   {2048, 768, 768},
                                   {1024, 3072, 768},
                                   {1024, 768, 3072},
                                   {768, 2048, 2048}};
  const double each = seconds / static_cast<double>(2 * shapes.size());
  for (PeakShape& shape : shapes) {
    for (const bool transpose_b : {true, false})
      shape.rate = std::max(shape.rate, best_of(runtime, type, shape, transpose_b, each));
  }
  return shapes;
}

double best_rate(const std::vector<PeakShape>& shapes) {
  return std::ranges::max_element(shapes, {}, &PeakShape::rate)->rate;
}

double copy_bandwidth(Runtime& runtime, int rounds) {
  BandwidthMeter meter(runtime);
  meter.sample(rounds);
  return meter.best();
}

void PeakMeter::sample(double seconds) {
  samples_.push_back(best_rate(sample_gemm_rates(runtime_, type_, seconds)));
}

double PeakMeter::peak() const { return samples_.empty() ? 0 : std::ranges::max(samples_); }

double PeakMeter::spread() const { return spread_of(samples_); }

BandwidthMeter::BandwidthMeter(Runtime& runtime) : runtime_(runtime) {
  Arena& arena = runtime.arena(MemoryClass::scratch);
  from_ = Tensor::empty(arena, {kCopied / 4}, DType::f32, "rates.from");
  to_ = Tensor::empty(arena, {kCopied / 4}, DType::f32, "rates.to");
  const kernels::Table& table = kernels::table(runtime.stream());
  table.fill({.out = from_, .value = 1}, runtime.stream());
  table.fill({.out = to_, .value = 1}, runtime.stream());
}

double BandwidthMeter::sample(int rounds) {
  const kernels::Table& table = kernels::table(runtime_.stream());
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    const double begin = now_seconds();
    table.copy({.x = from_, .out = to_}, runtime_.stream());
    runtime_.stream().synchronize();
    best = std::max(best, 2 * kCopied / (now_seconds() - begin));
  }
  samples_.push_back(best);
  return best;
}

double BandwidthMeter::best() const { return samples_.empty() ? 0 : std::ranges::max(samples_); }

double BandwidthMeter::spread() const { return spread_of(samples_); }

}  // namespace megatron::plan
