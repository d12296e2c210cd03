// The reference's gradients of what is around the scan of a state space equal central differences.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

class StateSpaceGradients : public ::testing::Test {
 protected:
  Tensor normal(const char* name, const Shape& shape) {
    return inputs_.normal(name, shape, DType::f64);
  }
  Tensor output(const char* name, const Shape& shape) {
    return inputs_.output(name, shape, DType::f64);
  }
  // Compares the gradient of the sum of dout * out with differences by each element of `of`.
  template <class Forward>
  void expect_differences(const char* name, const Tensor& of, const Tensor& gradient,
                          const Tensor& dout, const Tensor& out, Forward forward) {
    const std::vector<double> d = to_doubles(dout), expected = to_doubles(gradient);
    const auto loss = [&] {
      forward();
      const std::vector<double> y = to_doubles(out);
      double sum = 0;
      for (size_t i = 0; i < y.size(); ++i) sum += d[i] * y[i];
      return sum;
    };
    constexpr double kStep = 0x1p-17;
    for (int64_t i = 0; i < of.elements(); ++i) {
      double& element = of.data<double>()[i];
      const double before = element;
      element = before + kStep;
      const double above = loss();
      element = before - kStep;
      const double below = loss();
      element = before;
      EXPECT_NEAR((above - below) / (2 * kStep), expected[static_cast<size_t>(i)], 1e-8)
          << name << " " << i;
    }
  }

  Runtime runtime_{{DeviceKind::reference}, 1};
  Inputs inputs_{runtime_};
  const Table& kernels_ = table(runtime_.stream());
};

TEST_F(StateSpaceGradients, OfTheConvolution) {
  const Tensor x = normal("x", {2, 5, 2}), weight = normal("weight", {2, 3}),
               bias = normal("bias", {2}), dout = normal("dout", {2, 5, 2});
  const Tensor starts = inputs_.values("starts", {2, 5}, DType::i32,
                                       std::array<double, 10>{0, 0, 0, 3, 3, 0, 1, 1, 1, 1});
  const Tensor out = output("out", {2, 5, 2}), dx = output("dx", {2, 5, 2}),
               dweight = output("dweight", {2, 3}), dbias = output("dbias", {2});
  kernels_.causal_conv_backward({.x = x,
                                 .weight = weight,
                                 .bias = bias,
                                 .starts = starts,
                                 .dout = dout,
                                 .dx = dx,
                                 .dweight = {dweight},
                                 .dbias = {dbias}},
                                runtime_.stream());
  const auto forward = [&] {
    kernels_.causal_conv({.x = x, .weight = weight, .bias = bias, .starts = starts, .out = out},
                         runtime_.stream());
  };
  expect_differences("x", x, dx, dout, out, forward);
  expect_differences("weight", weight, dweight, dout, out, forward);
  expect_differences("bias", bias, dbias, dout, out, forward);
}

TEST_F(StateSpaceGradients, OfTheGatedNorm) {
  using enum GateOrder;
  for (const GateOrder order : {gate_first, norm_first, gate_only}) {
    SCOPED_TRACE(static_cast<int>(order));
    const bool norms = order != gate_only;
    const Tensor x = normal("x", {3, 8}), z = normal("z", {3, 8}), dout = normal("dout", {3, 8}),
                 out = output("out", {3, 8}), dx = output("dx", {3, 8}), dz = output("dz", {3, 8});
    Tensor weight, rstd, dweight;
    if (norms) {
      weight = normal("weight", {8});
      rstd = output("rstd", {3, 2});
      dweight = output("dweight", {8});
    }
    const auto forward = [&] {
      kernels_.gated_norm(
          {.order = order, .groups = 2, .x = x, .z = z, .weight = weight, .out = out, .rstd = rstd},
          runtime_.stream());
    };
    forward();
    kernels_.gated_norm_backward({.order = order,
                                  .groups = 2,
                                  .x = x,
                                  .z = z,
                                  .weight = weight,
                                  .rstd = rstd,
                                  .dout = dout,
                                  .dx = dx,
                                  .dz = dz,
                                  .dweight = {dweight}},
                                 runtime_.stream());
    expect_differences("x", x, dx, dout, out, forward);
    expect_differences("z", z, dz, dout, out, forward);
    if (norms) expect_differences("weight", weight, dweight, dout, out, forward);
  }
}

}  // namespace
}  // namespace megatron::kernels
