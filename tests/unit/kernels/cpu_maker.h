// Helpers for the tests of CPU kernels: tensors with normal values, and comparisons.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace megatron::kernels::cpu {

using Doubles = std::vector<double>;

inline double at(const Doubles& v, int64_t i) { return v[static_cast<size_t>(i)]; }

// Makes tensors with normal values from a fixed seed; a tensor begins `shift` elements after an
// aligned address.
class Maker {
 public:
  explicit Maker(int threads = 2) : runtime_({DeviceKind::cpu, 0}, threads) {}
  Stream& stream() { return runtime_.stream(); }

  Tensor empty(Shape shape, DType type, int64_t shift = 0) {
    Tensor t = Tensor::empty(runtime_.arena(MemoryClass::activations), {shape.elements() + shift},
                             type, "test");
    return t.slice(0, shift, shape.elements()).view(shape);
  }
  Tensor normal(Shape shape, DType type, int64_t shift = 0) {
    Tensor t = empty(shape, type, shift);
    Doubles values(static_cast<size_t>(t.elements()));
    std::normal_distribution<double> distribution;
    for (double& v : values) v = distribution(random_);
    copy_from(t, std::span<const double>(values));
    return t;
  }
  Tensor values(const Doubles& values, DType type) {
    Tensor t = empty({static_cast<int64_t>(values.size())}, type);
    copy_from(t, std::span<const double>(values));
    return t;
  }
  Tensor integers(const std::vector<int32_t>& values) {
    Tensor t = empty({static_cast<int64_t>(values.size())}, DType::i32);
    copy_from(t, std::span<const int32_t>(values));
    return t;
  }
  Tensor scalar(double value) {
    Tensor t = empty({}, DType::f64);
    *t.data<double>() = value;
    return t;
  }

 private:
  Runtime runtime_;
  std::mt19937_64 random_{11};
};

// Largest error over |want| + rms(want).
inline double error(const Tensor& got, const Doubles& want) {
  const Doubles values = to_doubles(got);
  double square = 1e-300, worst = values.size() == want.size() ? 0 : INFINITY;
  for (const double w : want) square += w * w / static_cast<double>(want.size());
  for (size_t i = 0; i < std::min(values.size(), want.size()); ++i) {
    const double e = std::abs(values[i] - want[i]) / (std::abs(want[i]) + std::sqrt(square));
    worst = std::isnan(e) ? INFINITY : std::max(worst, e);
  }
  return worst;
}

inline double tolerance(DType type) { return type == DType::bf16 ? 0.004 : 2e-6; }
inline void expect_near(const Tensor& got, const Doubles& want, const std::string& what) {
  EXPECT_LE(error(got, want), tolerance(got.dtype()))
      << what << " " << got.shape().str() << " " << name(got.dtype());
}
inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.bytes() == 0 || a.bytes() != b.bytes()) return a.bytes() == b.bytes();
  return std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0;
}

inline constexpr DType kTypes[] = {DType::f32, DType::bf16};

}  // namespace megatron::kernels::cpu
