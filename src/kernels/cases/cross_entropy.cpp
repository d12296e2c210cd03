#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Logits {
  int64_t rows = 1, vocabulary = 2;
  DType type = DType::f32, gradient = DType::f32;
  bool with_gradient = true, in_place = false;
  Layout layout;
  bool real = false;

  double elements() const { return static_cast<double>(rows * vocabulary); }
  std::string str() const {
    return fmt::format("t={} v={} {}{}{}", rows, vocabulary, describe(type, layout),
                       with_gradient ? fmt::format(" gradient {}", name(gradient)) : "",
                       in_place ? " in place" : "");
  }
};

Case::Call make(const Logits& l, Runtime& runtime) {
  Inputs inputs(runtime);
  const Shape shape{l.rows, l.vocabulary};
  const DType wide = accumulator(l.type);
  CrossEntropyArgs args{.logits = inputs.normal("logits", shape, l.type, 3, l.layout)};
  // Every third row counts for nothing and has the label that is never read; none at real sizes,
  // where such a row would cost less.
  std::vector<double> labels, weights;
  for (int64_t t = 0; t < l.rows; ++t) {
    const bool ignored = t % 3 == 2 && !l.real;
    labels.push_back(ignored ? -100 : static_cast<double>(t * 7919 % l.vocabulary));
    weights.push_back(ignored ? 0 : 1 + 0.25 * static_cast<double>(t % 2));
  }
  args.labels = inputs.values("labels", {l.rows}, DType::i32, labels);
  args.weights = inputs.values("weights", {l.rows}, wide, weights);
  args.loss = inputs.output("loss", {l.rows}, wide);
  if (l.in_place) {
    args.dlogits = inputs.updated("dlogits", args.logits);
  } else if (l.with_gradient) {
    args.dlogits = inputs.output("dlogits", shape, l.gradient, l.layout);
  }
  return inputs.call(
      [args](Stream& stream, const Table& table) { table.cross_entropy(args, stream); });
}

Case cross_entropy_case(const Logits& l) {
  return {
      .kernel = "cross_entropy",
      .name = l.str(),
      .dtype = l.type,
      // A sum over V of exps (2 u, of scores of size 10); gradients of labels are near 1 where the
      // rms is 1 / sqrt(V), so their last bit is sqrt(V) / 8 of what `tolerance` allows for.
      .tolerance = tolerance(l.with_gradient ? l.gradient : accumulator(l.type),
                             16 + std::sqrt(l.vocabulary)) *
                   std::max(1.0, std::sqrt(l.vocabulary) / 8),
      .real = l.real,
      .make = [l](Runtime& runtime) { return make(l, runtime); }};
}

}  // namespace

void add_cross_entropy_cases(std::vector<Case>& cases) {
  const auto add = [&](const Logits& l) { cases.push_back(cross_entropy_case(l)); };
  for (const auto& [type, gradient] : {std::pair{DType::f32, DType::f32},
                                       {DType::f32, DType::bf16},
                                       {DType::bf16, DType::f32},
                                       {DType::bf16, DType::bf16},
                                       {DType::f32, DType::f16},
                                       {DType::f16, DType::f32},
                                       {DType::f16, DType::f16},
                                       {DType::f64, DType::f64}}) {
    add({.rows = 1, .vocabulary = 1, .type = type, .gradient = gradient});
    add({.rows = 2, .vocabulary = 2, .type = type, .gradient = gradient});
    add({.rows = 7, .vocabulary = 33, .type = type, .gradient = gradient, .layout = kMisaligned});
    add({.rows = 0, .vocabulary = 8, .type = type, .gradient = gradient});
    add({.rows = 40, .vocabulary = 1000, .type = type, .gradient = gradient});
    if (type == gradient) {
      add({.rows = 8, .vocabulary = 129, .type = type, .gradient = gradient, .in_place = true});
      add({.rows = 8,
           .vocabulary = 129,
           .type = type,
           .gradient = gradient,
           .with_gradient = false});
    }
    if (type != DType::f32 || !timed(gradient)) continue;  // logits of training are f32
    for (const auto& [rows, vocabulary] : {std::pair{640, 50257}, {1024, 32000}}) {
      add({.rows = rows,
           .vocabulary = vocabulary,
           .gradient = gradient,
           .in_place = gradient == type,
           .real = true});
    }
  }
}

}  // namespace megatron::kernels
