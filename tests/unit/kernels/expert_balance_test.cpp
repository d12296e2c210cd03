// Balanced choices of experts, computed by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

class ExpertBalance : public ::testing::TestWithParam<DeviceKind> {
 protected:
  Tensor tensor(const char* name, Shape shape, const std::vector<double>& values) {
    return inputs_.values(name, std::move(shape), DType::f64, values);
  }
  const Table& kernels() const { return table(GetParam()); }

  Runtime runtime_{{GetParam(), 0}, 1};
  Inputs inputs_{runtime_};
};

// For K = (1, 4; 1, 1) the diagonal's share is sqrt(1 * 1) / (sqrt(1 * 1) + sqrt(4 * 1)).
TEST_P(ExpertBalance, SinkhornOfTwoTokensAndTwoExperts) {
  const SinkhornArgs args{.tolerance = 1e-12,
                          .logits = tensor("logits", {2, 2}, {0, std::log(4.0), 0, 0}),
                          .out = inputs_.output("out", {2, 2}, DType::f64)};
  kernels().sinkhorn(args, runtime_.stream());
  const std::vector<double> found = to_doubles(args.out),
                            expected = {1.0 / 6, 1.0 / 3, 1.0 / 3, 1.0 / 6};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[i], expected[i], 1e-7) << i;
}

// The limit of iterations holds, and a large tolerance ends them earlier.
TEST_P(ExpertBalance, SinkhornEnds) {
  const Tensor logits = inputs_.normal("logits", {9, 5}, DType::f64, 3);
  const auto run = [&](double tolerance, int64_t iterations) {
    const SinkhornArgs args{.tolerance = tolerance,
                            .iterations = iterations,
                            .logits = logits,
                            .out = inputs_.output("out", {9, 5}, DType::f64)};
    kernels().sinkhorn(args, runtime_.stream());
    return to_doubles(args.out);
  };
  EXPECT_EQ(run(1e9, 1000), run(0, 1));
  EXPECT_NE(run(0, 1), run(0, 2));
}

TEST_P(ExpertBalance, ThresholdsOfFourTokens) {
  const Tensor scores = tensor("scores", {4, 2}, {3, 0, 2, 0, 1, 0, 0, 1});
  const auto thresholds = [&](const std::vector<double>& bias) {
    const ExpertThresholdsArgs args{.k = 1,
                                    .logits = scores,
                                    .bias = tensor("bias", {2}, bias),
                                    .thresholds = inputs_.output("thresholds", {2}, DType::f64)};
    kernels().expert_thresholds(args, runtime_.stream());
    return to_doubles(args.thresholds);
  };
  // The lower score of each token is 0; two of four tokens are above the third highest.
  EXPECT_EQ(thresholds({0, 0}), (std::vector<double>{1, 0}));
  // The lower values of s + bias are 0, 0, -0.5, -1.5.
  EXPECT_EQ(thresholds({-1.5, 0}), (std::vector<double>{1.5, 0}));
}

TEST_P(ExpertBalance, TheBiasIsAMovingAverage) {
  const ThresholdBiasArgs args{
      .ema = 0.75, .sums = tensor("sums", {3}, {2, -4, 2}), .bias = tensor("bias", {2}, {1, 2})};
  kernels().threshold_bias(args, runtime_.stream());
  EXPECT_EQ(to_doubles(args.bias), (std::vector<double>{0.75 - 0.25, 1.5 + 0.5}));
}

INSTANTIATE_TEST_SUITE_P(Devices, ExpertBalance,
                         ::testing::Values(DeviceKind::reference, DeviceKind::cpu));

}  // namespace
}  // namespace megatron::kernels
