// Tensors and numerical derivatives for tests of kernels.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "base/philox.h"
#include "kernels/reference/table.h"

namespace megatron::kernels {

class ReferenceTest : public ::testing::Test {
 protected:
  Tensor make(Shape shape, DType type = DType::f64) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), shape, type, "test");
  }
  Tensor random(std::string_view name, Shape shape, DType type = DType::f64, double scale = 1) {
    const RandomStream stream(7, name);
    std::vector<double> values(static_cast<size_t>(shape.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = scale * stream.normal(i);
    return of(shape, values, type);
  }
  Tensor of(Shape shape, const std::vector<double>& values, DType type = DType::f64) {
    Tensor tensor = make(shape, type);
    copy_from(tensor, values);
    return tensor;
  }
  Tensor scalar(double value) { return of({}, {value}); }
  Stream& stream() { return runtime_.stream(); }
  const Table& kernels() { return reference_table(); }

  static double dot(const Tensor& a, const Tensor& b) {
    const std::vector<double> x = to_doubles(a), y = to_doubles(b);
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
    return sum;
  }

  // Compares central differences of loss() for each element of an f64 tensor with `gradient`.
  static void expect_gradient(const Tensor& x, const Tensor& gradient,
                              const std::function<double()>& loss, const char* what,
                              double tolerance = 1e-7) {
    const std::vector<double> expected = to_doubles(gradient);
    const std::span<double> values = x.span<double>();
    for (size_t i = 0; i < values.size(); ++i) {
      const double kept = values[i], step = 1e-5;
      values[i] = kept + step;
      const double above = loss();
      values[i] = kept - step;
      const double below = loss();
      values[i] = kept;
      EXPECT_NEAR((above - below) / (2 * step), expected[i], tolerance) << what << " " << i;
    }
  }

  Runtime runtime_{{DeviceKind::reference}, 2};
};

inline void expect_near(const Tensor& a, const std::vector<double>& b, double tolerance) {
  const std::vector<double> x = to_doubles(a);
  ASSERT_EQ(x.size(), b.size());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], b[i], tolerance) << i;
}

}  // namespace megatron::kernels
