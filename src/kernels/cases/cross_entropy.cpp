#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

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

// Labels below `all`. Every third row has weight 0 and a label that is never read, except at real
// sizes, where such rows would cost less.
std::pair<Tensor, Tensor> labels_and_weights(Inputs& inputs, const Logits& l, int64_t all) {
  std::vector<double> labels, weights;
  for (int64_t t = 0; t < l.rows; ++t) {
    const bool ignored = t % 3 == 2 && !l.real;
    labels.push_back(ignored ? -100 : static_cast<double>(t * 7919 % all));
    weights.push_back(ignored ? 0 : 1 + 0.25 * static_cast<double>(t % 2));
  }
  return {inputs.values("labels", {l.rows}, DType::i32, labels),
          inputs.values("weights", {l.rows}, accumulator(l.type), weights)};
}

Case::Call make(const Logits& l, Runtime& runtime) {
  Inputs inputs(runtime);
  const Shape shape{l.rows, l.vocabulary};
  const DType wide = accumulator(l.type);
  CrossEntropyArgs args{.logits = inputs.normal("logits", shape, l.type, 3, l.layout)};
  std::tie(args.labels, args.weights) = labels_and_weights(inputs, l, l.vocabulary);
  args.loss = inputs.output("loss", {l.rows}, wide);
  if (l.in_place) {
    args.dlogits = inputs.updated("dlogits", args.logits);
  } else if (l.with_gradient) {
    args.dlogits = inputs.output("dlogits", shape, l.gradient, l.layout);
  }
  return inputs.call(
      [args](Stream& stream, const Table& table) { table.cross_entropy(args, stream); });
}

// Size of the whole vocabulary, at least 2; the local part is [first, first + vocabulary).
int64_t all_columns(const Logits& l) { return std::max<int64_t>(2, 2 * l.vocabulary); }
int64_t first_column(const Logits& l) { return all_columns(l) / 4; }

Case::Call make_stats(const Logits& l, Runtime& runtime) {
  Inputs inputs(runtime);
  VocabularyStatsArgs args{
      .logits = inputs.normal("logits", {l.rows, l.vocabulary}, l.type, 3, l.layout)};
  std::tie(args.labels, args.weights) = labels_and_weights(inputs, l, all_columns(l));
  args.first = first_column(l);
  if (l.in_place) {
    args.exponentials = inputs.updated("exponentials", args.logits);
  } else if (l.with_gradient) {
    args.exponentials = inputs.output("exponentials", {l.rows, l.vocabulary}, l.type, l.layout);
  }
  args.stats = inputs.output("stats", {l.rows, 3}, l.type);
  return inputs.call(
      [args](Stream& stream, const Table& table) { table.vocabulary_stats(args, stream); });
}

// The second of three ranks; the others' largest logits are above and below its own.
Case::Call make_divided(const Logits& l, Runtime& runtime) {
  Inputs inputs(runtime);
  const Shape shape{l.rows, l.vocabulary};
  VocabularyCrossEntropyArgs args{.exponentials =
                                      inputs.positive("exponentials", shape, l.type, 0, l.layout)};
  std::tie(args.labels, args.weights) = labels_and_weights(inputs, l, all_columns(l));
  args.first = first_column(l);
  args.rank = 1;
  std::vector<double> stats;
  for (int64_t rank = 0; rank < 3; ++rank) {
    for (int64_t t = 0; t < l.rows; ++t) {
      const int64_t label = t * 7919 % all_columns(l);
      const int64_t holder = label < args.first ? 0 : label < args.first + l.vocabulary ? 1 : 2;
      stats.push_back(2 + static_cast<double>((t + rank) % 3));
      stats.push_back(static_cast<double>(l.vocabulary) + 1.5);
      stats.push_back(rank == holder ? 0.5 : -std::numeric_limits<double>::infinity());
    }
  }
  args.stats = inputs.values("stats", {3, l.rows, 3}, l.type, stats);
  args.loss = inputs.output("loss", {l.rows}, l.type);
  if (l.in_place) {
    args.dlogits = inputs.updated("dlogits", args.exponentials);
  } else if (l.with_gradient) {
    args.dlogits = inputs.output("dlogits", shape, l.gradient, l.layout);
  }
  return inputs.call(
      [args](Stream& stream, const Table& table) { table.vocabulary_cross_entropy(args, stream); });
}

Case stats_case(const Logits& l) {
  return {.kernel = "vocabulary_stats",
          .name = l.str(),
          .dtype = l.type,
          .tolerance = tolerance(l.type, 16 + std::sqrt(l.vocabulary)),
          .real = l.real,
          .make = [l](Runtime& runtime) { return make_stats(l, runtime); }};
}

Case divided_case(const Logits& l) {
  return {.kernel = "vocabulary_cross_entropy",
          .name = l.str(),
          .dtype = l.type,
          // As for cross_entropy, but the sum is an input here.
          .tolerance = tolerance(l.with_gradient ? l.gradient : l.type, 16) *
                       std::max(1.0, std::sqrt(l.vocabulary) / 8),
          .real = l.real,
          .make = [l](Runtime& runtime) { return make_divided(l, runtime); }};
}

Case cross_entropy_case(const Logits& l) {
  return {.kernel = "cross_entropy",
          .name = l.str(),
          .dtype = l.type,
          // A sum over V of exps (2 u, of scores of size 10). Gradients of labels are near 1 while
          // the rms is 1 / sqrt(V), so their last bit is sqrt(V) / 8 of what `tolerance` allows.
          .tolerance = tolerance(l.with_gradient ? l.gradient : accumulator(l.type),
                                 16 + std::sqrt(l.vocabulary)) *
                       std::max(1.0, std::sqrt(l.vocabulary) / 8),
          .real = l.real,
          .make = [l](Runtime& runtime) { return make(l, runtime); }};
}

// Half of GPT-2's vocabulary and a quarter of a Llama's, with and without gradient.
void add_divided_cases(std::vector<Case>& cases) {
  const auto add = [&](const Logits& l) {
    if (l.type == l.gradient) cases.push_back(stats_case(l));
    cases.push_back(divided_case(l));
  };
  for (const auto& [type, gradient] : {std::pair{DType::f32, DType::f32},
                                       {DType::f32, DType::bf16},
                                       {DType::f32, DType::f16},
                                       {DType::f64, DType::f64}}) {
    add({.rows = 1, .vocabulary = 1, .type = type, .gradient = gradient});
    add({.rows = 7, .vocabulary = 33, .type = type, .gradient = gradient, .layout = kMisaligned});
    add({.rows = 0, .vocabulary = 8, .type = type, .gradient = gradient});
    add({.rows = 5, .vocabulary = 0, .type = type, .gradient = gradient});
    add({.rows = 40, .vocabulary = 1000, .type = type, .gradient = gradient});
    if (type == gradient) {
      add({.rows = 8, .vocabulary = 129, .type = type, .gradient = type, .in_place = true});
      add({.rows = 8, .vocabulary = 129, .type = type, .gradient = type, .with_gradient = false});
    }
    if (type != DType::f32 || !trained(gradient)) continue;
    for (const auto& [rows, vocabulary] : {std::pair{1280, 25129}, {4096, 8000}}) {
      add({.rows = rows,
           .vocabulary = vocabulary,
           .gradient = gradient,
           .in_place = gradient == type,
           .real = true});
    }
  }
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
    // More than fits a GPU multiprocessor's shared memory.
    add({.rows = 2, .vocabulary = 130000, .type = type, .gradient = gradient});
    if (type == gradient) {
      add({.rows = 8, .vocabulary = 129, .type = type, .gradient = gradient, .in_place = true});
      add({.rows = 8,
           .vocabulary = 129,
           .type = type,
           .gradient = gradient,
           .with_gradient = false});
    }
    if (type != DType::f32 || !trained(gradient)) continue;  // training logits are f32
    for (const auto& [rows, vocabulary] : {std::pair{640, 50257}, {1024, 32000}}) {
      add({.rows = rows,
           .vocabulary = vocabulary,
           .gradient = gradient,
           .in_place = gradient == type,
           .real = true});
    }
  }
  add_divided_cases(cases);
}

}  // namespace megatron::kernels
