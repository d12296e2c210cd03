// Compares router logits of f32 and bf16 numbers, summed in f64, with a computation in f64.
#include <gtest/gtest.h>

#include <cmath>

#include "base/philox.h"
#include "ops/router.h"

namespace megatron::ops {
namespace {

constexpr int64_t kTokens = 37, kHidden = 300, kExperts = 6;

struct Results {
  std::vector<double> logits, dx, dw, db;
};

// Values are representable in bf16, so that every type has them; weight gradients are added to 0.5.
Results results_of(DeviceKind device, DType type, bool double_sums) {
  Runtime runtime({device, 0}, 2);
  const auto made = [&](const char* name, Shape shape, DType of) {
    Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), shape, of, name);
    const RandomStream random(3, name);
    std::vector<double> values;
    for (int64_t i = 0; i < shape.elements(); ++i)
      values.push_back(
          static_cast<float>(bf16(static_cast<float>(random.normal(static_cast<uint64_t>(i))))));
    copy_from(t, std::span<const double>(values));
    return t;
  };
  const DType wide = kernels::accumulator(type);
  const auto parameter = [&](const char* name, Shape shape) {
    Parameter p{.name = name, .value = made(name, shape, type)};
    Tensor grad = Tensor::empty(runtime.arena(MemoryClass::gradients), shape, wide, name);
    copy_from(grad, std::vector<double>(static_cast<size_t>(shape.elements()), 0.5));
    p.uses[0] = {.grad = grad, .started = true};
    return p;
  };
  Parameter w = parameter("w", {kExperts, kHidden}), b = parameter("b", {kExperts});
  Tape tape(runtime);
  const Var x = tape.leaf(made("x", {kTokens, kHidden}, type));
  const Var logits = router_logits(tape, x, w, b, double_sums);
  EXPECT_EQ(logits.value.dtype(), wide);
  tape.set_gradient(logits, made("dlogits", {kTokens, kExperts}, wide));
  tape.backward();
  return {to_doubles(logits.value), to_doubles(tape.gradient(x)), to_doubles(w.uses[0].grad),
          to_doubles(b.uses[0].grad)};
}

// Error of the worst element in units of f32's last place.
double worst_ulps(const std::vector<double>& got, const std::vector<double>& want) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i)
    worst = std::max(worst, std::abs(got[i] - want[i]) / (std::abs(want[i]) * 0x1p-23));
  return worst;
}

TEST(RouterLogits, WithDoubleSumsAreRoundedOnce) {
  const Results exact = results_of(DeviceKind::reference, DType::f64, false);
  for (const DeviceKind device : {DeviceKind::reference, DeviceKind::cpu}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(std::string(name(device)) + " " + std::string(name(type)));
      const Results found = results_of(device, type, true);
      EXPECT_LE(worst_ulps(found.logits, exact.logits), 0.5);
      EXPECT_LE(worst_ulps(found.dw, exact.dw), 0.5);
      // Sums of the bias's gradient are in f32: kTokens roundings of up to its largest partial sum.
      for (size_t e = 0; e < exact.db.size(); ++e)
        EXPECT_NEAR(found.db[e], exact.db[e], kTokens * 0x1p-24 * 4 * std::sqrt(kTokens));
      // dx is rounded to f32 and then to its type.
      EXPECT_LE(worst_ulps(found.dx, exact.dx), type == DType::bf16 ? 0x1p15 * 1.01 : 0.5);
      const Results plain = results_of(device, type, false);
      EXPECT_GT(worst_ulps(plain.logits, exact.logits), 1);
    }
  }
}

}  // namespace
}  // namespace megatron::ops
