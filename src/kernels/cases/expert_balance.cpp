#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Balanced {
  int64_t tokens = 1, experts = 2;
  double scale = 1;  // of logits
  int64_t iterations = 1000;
  int64_t from = 0;  // tokens before this one are left out; every third is, if it is above 0
  bool real = false;
  DType type = DType::f32;

  std::string str() const {
    return fmt::format("t={} e={} logits {} iterations {} from {} {}", tokens, experts, scale,
                       iterations, from, name(type));
  }
};

// Undefined if none is left out.
Tensor counted(Inputs& inputs, int64_t tokens, int64_t from) {
  if (from == 0) return {};
  std::vector<double> numbers;
  for (int64_t t = 0; inputs.has_data() && t < tokens; ++t)
    numbers.push_back(t < from || t % 3 == 1 ? -1 : static_cast<double>(t));
  return inputs.values("counted", {tokens}, DType::i32, numbers);
}

SinkhornArgs sinkhorn_args(Inputs& inputs, const Balanced& b) {
  const Shape shape{b.tokens, b.experts};
  return {.iterations = b.iterations,
          .logits = inputs.normal("logits", shape, b.type, b.scale),
          .counted = counted(inputs, b.tokens, b.from),
          .out = inputs.output("out", shape, b.type)};
}

struct Thresholded {
  int64_t tokens = 1, experts = 2, k = 1;
  RouterForm form = {};
  int64_t from = 0;  // as of Balanced
  bool ties = false, real = false;
  DType type = DType::f32;

  std::string str() const {
    constexpr const char* kScores[] = {"softmax", "sigmoid", "sqrt_softplus"};
    return fmt::format("t={} e={} k={} {}{}{} from {} {}", tokens, experts, k,
                       kScores[static_cast<size_t>(form.score)], form.softmax_first ? " first" : "",
                       ties ? " ties" : "", from, name(type));
  }
};

ExpertThresholdsArgs thresholds_args(Inputs& inputs, const Thresholded& q) {
  const Shape shape{q.tokens, q.experts};
  return {.form = q.form,
          .k = q.k,
          .logits = q.ties ? inputs.integers("logits", shape, q.type, -2, 3)
                           : inputs.normal("logits", shape, q.type),
          .bias = inputs.normal("bias", {q.experts}, q.type, 0.2),
          .counted = counted(inputs, q.tokens, q.from),
          .thresholds = inputs.output("thresholds", {q.experts}, q.type)};
}

Case threshold_bias_case(int64_t experts, double ema, DType type) {
  const Named named{fmt::format("e={} ema={} {}", experts, ema, name(type)), type};
  return case_of(&Table::threshold_bias, named, tolerance(type, 4),
                 [=](Inputs& inputs, const Named&) {
                   // sums[E], the total, is a divisor. With one expert it may be 0, which leaves
                   // the bias unchanged.
                   return ThresholdBiasArgs{
                       .ema = ema,
                       .sums = experts == 1 ? inputs.integers("sums", {2}, type, 0, 1)
                                            : inputs.positive("sums", {experts + 1}, type, 1),
                       .bias = inputs.updated("bias", inputs.normal("bias", {experts}, type))};
                 });
}

}  // namespace

void add_expert_balance_cases(std::vector<Case>& cases) {
  std::vector<Balanced> balanced = {
      {},
      {.tokens = 0, .experts = 3},
      {.tokens = 5, .experts = 1},
      {.tokens = 7, .experts = 13},
      {.tokens = 200, .experts = 40, .scale = 3},
      {.tokens = 33, .experts = 8, .scale = 4, .iterations = 2},
      {.tokens = 3, .experts = 1300},
      {.tokens = 150, .experts = 12, .from = 30},
      {.tokens = 5, .experts = 4, .from = 5},
      {.tokens = 4096, .experts = 64, .real = true},
  };
  // All terms of the sums have the same sign, and both sides run the same number of iterations.
  for (const Balanced& b : in_types(balanced, {DType::f32, DType::f64}))
    cases.push_back(case_of(&Table::sinkhorn, b,
                            b.type == DType::f64 ? 1e-11 : tolerance(b.type, 2), sinkhorn_args));
  std::vector<Thresholded> thresholded = {
      {},
      {.tokens = 7, .experts = 13, .k = 3},
      {.tokens = 70, .experts = 6, .k = 5, .ties = true},
      {.tokens = 33, .experts = 24, .k = 4, .form = {.score = RouterScore::sigmoid}},
      {.tokens = 33, .experts = 24, .k = 4, .form = {.score = RouterScore::sqrt_softplus}},
      {.tokens = 600, .experts = 64, .k = 8, .form = {.softmax_first = true}},
      {.tokens = 150, .experts = 12, .k = 5, .from = 30},
      {.tokens = 5, .experts = 4, .k = 3, .from = 5},
      {.tokens = 4096, .experts = 64, .k = 8, .real = true},
  };
  for (const Thresholded& q : in_types(thresholded, {DType::f32, DType::f64}))
    cases.push_back(case_of(&Table::expert_thresholds, q, tolerance(q.type, 32), thresholds_args));
  for (const DType type : {DType::f32, DType::f64}) {
    for (const double ema : {0.0, 0.9}) {
      cases.push_back(threshold_bias_case(1, ema, type));
      cases.push_back(threshold_bias_case(300, ema, type));
    }
  }
}

}  // namespace megatron::kernels
