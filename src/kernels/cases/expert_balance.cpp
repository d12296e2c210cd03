#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Balanced {
  int64_t tokens = 1, experts = 2;
  double scale = 1;  // of logits
  int64_t iterations = 1000;
  bool real = false;
};

// All terms of the sums have the same sign, and the number of iterations is fixed.
Case sinkhorn_case(const Balanced& b, DType type) {
  return {.kernel = "sinkhorn",
          .name = fmt::format("t={} e={} logits {} iterations {} {}", b.tokens, b.experts, b.scale,
                              b.iterations, name(type)),
          .dtype = type,
          .tolerance = type == DType::f64 ? 1e-11 : tolerance(type, 2),
          .real = b.real,
          .make = [b, type](Runtime& runtime) {
            Inputs inputs(runtime);
            const Shape shape{b.tokens, b.experts};
            const SinkhornArgs args{.iterations = b.iterations,
                                    .logits = inputs.normal("logits", shape, type, b.scale),
                                    .out = inputs.output("out", shape, type)};
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.sinkhorn(args, stream); });
          }};
}

struct Thresholded {
  int64_t tokens = 1, experts = 2, k = 1;
  RouterForm form;
  bool ties = false, real = false;
};

Case thresholds_case(const Thresholded& q, DType type) {
  constexpr const char* kScores[] = {"softmax", "sigmoid", "sqrt_softplus"};
  return {
      .kernel = "expert_thresholds",
      .name = fmt::format("t={} e={} k={} {}{}{} {}", q.tokens, q.experts, q.k,
                          kScores[static_cast<size_t>(q.form.score)],
                          q.form.softmax_first ? " first" : "", q.ties ? " ties" : "", name(type)),
      .dtype = type,
      .tolerance = tolerance(type, 32),
      .real = q.real,
      .make = [q, type](Runtime& runtime) {
        Inputs inputs(runtime);
        const Shape shape{q.tokens, q.experts};
        const ExpertThresholdsArgs args{
            .form = q.form,
            .k = q.k,
            .logits = q.ties ? inputs.integers("logits", shape, type, -2, 3)
                             : inputs.normal("logits", shape, type),
            .bias = inputs.normal("bias", {q.experts}, type, 0.2),
            .thresholds = inputs.output("thresholds", {q.experts}, type)};
        return inputs.call(
            [args](Stream& stream, const Table& table) { table.expert_thresholds(args, stream); });
      }};
}

Case threshold_bias_case(int64_t experts, double ema, DType type) {
  return {.kernel = "threshold_bias",
          .name = fmt::format("e={} ema={} {}", experts, ema, name(type)),
          .dtype = type,
          .tolerance = tolerance(type, 4),
          .make = [=](Runtime& runtime) {
            Inputs inputs(runtime);
            // The last of the sums is the divisor; with a single expert it is 0.
            const ThresholdBiasArgs args{
                .ema = ema,
                .sums = experts == 1 ? inputs.integers("sums", {2}, type, 0, 1)
                                     : inputs.positive("sums", {experts + 1}, type, 1),
                .bias = inputs.updated("bias", inputs.normal("bias", {experts}, type))};
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.threshold_bias(args, stream); });
          }};
}

}  // namespace

void add_expert_balance_cases(std::vector<Case>& cases) {
  for (const DType type : {DType::f32, DType::f64}) {
    for (const Balanced& b :
         {Balanced{}, Balanced{.tokens = 0, .experts = 3}, Balanced{.tokens = 5, .experts = 1},
          Balanced{.tokens = 7, .experts = 13}, Balanced{.tokens = 200, .experts = 40, .scale = 3},
          Balanced{.tokens = 33, .experts = 8, .scale = 4, .iterations = 2},
          Balanced{.tokens = 3, .experts = 1300}})
      cases.push_back(sinkhorn_case(b, type));
    for (const Thresholded& q :
         {Thresholded{}, Thresholded{.tokens = 7, .experts = 13, .k = 3},
          Thresholded{.tokens = 70, .experts = 6, .k = 5, .ties = true},
          Thresholded{.tokens = 33, .experts = 24, .k = 4, .form = {.score = RouterScore::sigmoid}},
          Thresholded{
              .tokens = 33, .experts = 24, .k = 4, .form = {.score = RouterScore::sqrt_softplus}},
          Thresholded{.tokens = 600, .experts = 64, .k = 8, .form = {.softmax_first = true}}})
      cases.push_back(thresholds_case(q, type));
    for (const double ema : {0.0, 0.9}) {
      cases.push_back(threshold_bias_case(1, ema, type));
      cases.push_back(threshold_bias_case(300, ema, type));
    }
  }
  cases.push_back(sinkhorn_case({.tokens = 4096, .experts = 64, .real = true}, DType::f32));
  cases.push_back(
      thresholds_case({.tokens = 4096, .experts = 64, .k = 8, .real = true}, DType::f32));
}

}  // namespace megatron::kernels
