#include "training/peak.h"

#include <algorithm>

#include "base/clock.h"
#include "kernels/table.h"

namespace megatron::training {
namespace {

constexpr double kWindow = 0.05;  // seconds of products in a row that count as sustained

double best_of(Runtime& runtime, DType type, const PeakShape& shape, double seconds) {
  Arena& arena = runtime.arena(MemoryClass::scratch);
  const kernels::Table& table = kernels::table(runtime.stream());
  Tensor a = Tensor::empty(arena, {shape.m, shape.k}, type, "peak.a");
  Tensor b = Tensor::empty(arena, {shape.n, shape.k}, type, "peak.b");
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
      table.gemm({.a = a, .b = b, .out = out, .transpose_b = true}, runtime.stream());
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
  for (PeakShape& shape : shapes)
    shape.rate = best_of(runtime, type, shape, seconds / static_cast<double>(shapes.size()));
  return shapes;
}

double best_rate(const std::vector<PeakShape>& shapes) {
  return std::ranges::max_element(shapes, {}, &PeakShape::rate)->rate;
}

void PeakMeter::sample(double seconds) {
  samples_.push_back(best_rate(sample_gemm_rates(runtime_, type_, seconds)));
}

double PeakMeter::peak() const { return samples_.empty() ? 0 : std::ranges::max(samples_); }

double PeakMeter::spread() const {
  return samples_.empty() ? 0
                          : (std::ranges::max(samples_) - std::ranges::min(samples_)) /
                                std::ranges::max(samples_);
}

}  // namespace megatron::training
