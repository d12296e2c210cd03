// The host's kernels on every instruction set of this processor: equal bits if no product is fused
// into a sum, and otherwise within the tolerance of f32.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "unit/kernels/cpu_maker.h"
#include "unit/kernels/instruction_sets.h"

namespace megatron::kernels::cpu {
namespace {

struct Results {
  std::vector<Tensor> equal, near;
};

// What is around the scan of a state space.
void run_state_space(Maker& maker, const Tensor& x, const Tensor& d, Results& r) {
  const DType type = x.dtype();
  const int64_t rows = x.size(0), width = x.size(1);
  Stream& stream = maker.stream();
  const auto near = [&](Shape shape, DType t) {
    return r.near.emplace_back(maker.empty(shape, t));
  };
  const Tensor z = maker.normal({rows, width}, type), w = maker.normal({width}, type);
  for (const int64_t size : {4, 7}) {
    const Tensor taps = maker.normal({width, size}, type);
    const auto sequence = [&](const Tensor& t) { return t.view({1, rows, width}); };
    causal_conv(
        {.x = sequence(x), .weight = taps, .bias = w, .out = sequence(near({rows, width}, type))},
        stream);
    causal_conv_backward({.x = sequence(x),
                          .weight = taps,
                          .bias = w,
                          .dout = sequence(d),
                          .dx = sequence(near({rows, width}, type)),
                          .dweight = {near({width, size}, DType::f32), 0},
                          .dbias = {near({width}, DType::f32), 0}},
                         stream);
  }
  for (const GateOrder order : {GateOrder::gate_first, GateOrder::norm_first}) {
    const Tensor rstd = near({rows, 2}, DType::f32);
    gated_norm({.order = order,
                .groups = 2,
                .x = x,
                .z = z,
                .weight = w,
                .out = near({rows, width}, type),
                .rstd = rstd},
               stream);
    gated_norm_backward({.order = order,
                         .groups = 2,
                         .x = x,
                         .z = z,
                         .weight = w,
                         .rstd = rstd,
                         .dout = d,
                         .dx = near({rows, width}, type),
                         .dz = near({rows, width}, type),
                         .dweight = {near({width}, DType::f32), 0}},
                        stream);
  }
}

Results run_all(DType type) {
  Maker maker;
  Results r;
  const int64_t rows = 6, width = 78;
  const Tensor x = maker.normal({rows, width}, type), d = maker.normal({rows, width}, type);
  const Tensor w = maker.normal({width}, type);
  const auto equal = [&](Shape shape, DType t) {
    return r.equal.emplace_back(maker.empty(shape, t));
  };
  const auto near = [&](Shape shape, DType t) {
    return r.near.emplace_back(maker.empty(shape, t));
  };
  Stream& stream = maker.stream();

  add({x, d, equal({rows, width}, type)}, stream);
  copy({x, equal({rows, width}, type == DType::f32 ? DType::bf16 : DType::f32)}, stream);
  for (const DType to : {DType::f32, DType::bf16})
    copy({x.transpose(0, 1), equal({width, rows}, to)}, stream);
  column_sum({x, {equal({width}, DType::f32), 0}}, stream);
  sum_rows({x, maker.integers({5, 2, -1, 0, 1, 1, 3, 4}).view({2, 4}), equal({2, width}, type)},
           stream);
  const Tensor factors = maker.normal({rows}, DType::f32);
  scale_rows({x, factors, equal({rows, width}, type)}, stream);
  scale_rows_backward({x, factors, d, equal({rows, width}, type), equal({rows}, DType::f32)},
                      stream);
  const Tensor g = maker.normal({1000}, DType::f32);
  sum_of_squares({g, equal({1}, DType::f64)}, stream);
  Tensor samples = maker.empty({2}, DType::i64);
  fill({samples, 3}, stream);
  const DropoutArgs::Mask mask{0.25f, 5, 6, samples};
  const Tensor dropped = equal({rows, width}, type);
  dropout({mask, x, dropped}, stream);
  for (const auto kind : {DrawArgs::Kind::normal, DrawArgs::Kind::uniform}) {
    for (const DType to : {type, DType::f64})
      draw({kind, 0.02, 7, 8, 3, 501, equal({3, 500}, to)}, stream);
  }
  for (const bool interleaved : {false, true}) {
    rope(
        {x.view({rows, 1, width}), equal({rows, 1, width}, type), maker.normal({4, 37}, DType::f32),
         maker.normal({4, 37}, DType::f32), maker.integers({0, 1, 2, 3, 0, 1}), interleaved},
        stream);
  }
  AddNormArgs norm{x,
                   d,
                   w,
                   w,
                   1e-5f,
                   equal({rows, width}, type),
                   equal({rows, width}, type),
                   equal({rows}, DType::f32),
                   equal({rows}, DType::f32)};
  add_layer_norm(norm, stream);
  const Tensor master = equal({1000}, DType::f32), m = equal({1000}, DType::f32),
               v = equal({1000}, DType::f32);
  for (const Tensor* t : {&master, &m, &v}) fill({*t, 0.5}, stream);
  adam({{master, {}},
        g,
        m,
        v,
        maker.scalar(0.1),
        maker.scalar(0.1),
        maker.scalar(2),
        maker.scalar(0.3)},
       stream);

  add_layer_norm_backward({d,
                           {},
                           norm.sum,
                           w,
                           norm.mean,
                           norm.rstd,
                           near({rows, width}, type),
                           {near({width}, DType::f32), 0},
                           {near({width}, DType::f32), 0}},
                          stream);
  for (const Activation function :
       {Activation::gelu_tanh, Activation::gelu_erf, Activation::silu, Activation::relu}) {
    activation({function, false, x, near({rows, width}, type)}, stream);
    activation_backward({function, false, x, d, near({rows, width}, type)}, stream);
  }
  run_state_space(maker, x, d, r);
  cross_entropy(
      {x, maker.integers({0, 5, 9, 77, 3, 3}), maker.values({1, 1, 1, 1, 1, 1}, DType::f32),
       near({rows}, DType::f32), near({rows, width}, type)},
      stream);
  if (type != DType::f32) return r;
  for (const RouterForm& form : {RouterForm{.softmax_first = true, .normalised = true},
                                 RouterForm{.score = RouterScore::sigmoid, .scale = 2}}) {
    const Tensor experts = equal({rows, 5}, DType::i32), dweights = maker.normal({rows, 5}, type);
    route({.form = form, .logits = x, .experts = experts, .weights = near({rows, 5}, type)},
          stream);
    route_backward({form, x, experts, dweights, near({rows, width}, type)}, stream);
    router_sums({.score = form.score,
                 .k = 5,
                 .logits = x,
                 .sums = near({2, width}, type),
                 .counts = equal({2, width}, type),
                 .squares = near({2}, type),
                 .entropy = near({2}, type)},
                stream);
  }
  const Tensor labels = maker.integers({0, 5, 9, 77, 3, 3}),
               weights = maker.values({1, 1, 1, 1, 1, 1}, type), stats = near({1, rows, 3}, type),
               exponentials = near({rows, width}, type);
  vocabulary_stats({.logits = x,
                    .labels = labels,
                    .weights = weights,
                    .exponentials = exponentials,
                    .stats = stats.select(0, 0)},
                   stream);
  vocabulary_cross_entropy({.stats = stats,
                            .exponentials = exponentials,
                            .labels = labels,
                            .weights = weights,
                            .loss = near({rows}, type),
                            .dlogits = near({rows, width}, type)},
                           stream);
  return r;
}

TEST(CpuInstructionSets, AgreeWithEachOther) {
  for (const DType type : kTypes) {
    const Results best = run_all(type);
    for_each_target([&](int64_t target) {
      const Results other = run_all(type);
      for (size_t i = 0; i < best.equal.size(); ++i) {
        EXPECT_TRUE(same_bits(best.equal[i], other.equal[i]))
            << hwy::TargetName(target) << " " << i;
      }
      for (size_t i = 0; i < best.near.size(); ++i) {
        expect_near(other.near[i], to_doubles(best.near[i]), hwy::TargetName(target));
      }
    });
  }
}

// The terms of vocabulary_stats are exp(logit - largest logit); the largest is 0 here.
TEST(CpuInstructionSets, ExponentialsAreWithinTheirBound) {
  Doubles x{0, -std::numeric_limits<double>::infinity(), -1e30};
  for (double at = -112; at < 0; at += 0.00037) x.push_back(static_cast<float>(at));
  for_each_target([&](int64_t) {
    Maker maker;
    const auto n = static_cast<int64_t>(x.size());
    const Tensor terms = maker.empty({1, n}, DType::f32);
    vocabulary_stats({.logits = maker.values(x, DType::f32).view({1, n}),
                      .labels = maker.integers({0}),
                      .weights = maker.values({1}, DType::f32),
                      .exponentials = terms,
                      .stats = maker.empty({1, 3}, DType::f32)},
                     maker.stream());
    const Doubles got = to_doubles(terms);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      int exponent = 0;
      const double want = std::exp(x[i]);
      std::frexp(want, &exponent);
      worst =
          std::max(worst, std::abs(got[i] - want) / std::ldexp(1, std::max(exponent - 24, -149)));
    }
    EXPECT_LE(worst, 1.1);
    EXPECT_EQ(got[0], 1);
    EXPECT_EQ(got[1], 0);
    EXPECT_EQ(got[2], 0);
  });
}

}  // namespace
}  // namespace megatron::kernels::cpu
