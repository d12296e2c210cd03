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
  bool with_gradient = true, in_place = false, hits = false;
  Layout layout;
  bool real = false;
  DType type = DType::f32, gradient = DType::f32;

  std::string str() const {
    return fmt::format("t={} v={} {}{}{}{}", rows, vocabulary, describe(type, layout),
                       with_gradient ? fmt::format(" gradient {}", name(gradient)) : "",
                       in_place ? " in place" : "", hits ? " hits" : "");
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

// The gradient in place of `from`, or apart from it, or none.
Tensor gradient_of(Inputs& inputs, const Logits& l, const char* name, const Tensor& from,
                   DType type) {
  if (l.in_place) return inputs.updated(name, from);
  return l.with_gradient ? inputs.output(name, from.shape(), type, l.layout) : Tensor();
}

CrossEntropyArgs cross_entropy_args(Inputs& inputs, const Logits& l) {
  CrossEntropyArgs args{.logits =
                            inputs.normal("logits", {l.rows, l.vocabulary}, l.type, 3, l.layout)};
  std::tie(args.labels, args.weights) = labels_and_weights(inputs, l, l.vocabulary);
  args.loss = inputs.output("loss", {l.rows}, accumulator(l.type));
  args.dlogits = gradient_of(inputs, l, "dlogits", args.logits, l.gradient);
  if (l.hits) args.hits = inputs.output("hits", {l.rows}, accumulator(l.type));
  return args;
}

// Size of the whole vocabulary, at least 2; the local part is [first, first + vocabulary).
int64_t all_columns(const Logits& l) { return std::max<int64_t>(2, 2 * l.vocabulary); }
int64_t first_column(const Logits& l) { return all_columns(l) / 4; }

VocabularyStatsArgs vocabulary_stats_args(Inputs& inputs, const Logits& l) {
  VocabularyStatsArgs args{
      .logits = inputs.normal("logits", {l.rows, l.vocabulary}, l.type, 3, l.layout)};
  std::tie(args.labels, args.weights) = labels_and_weights(inputs, l, all_columns(l));
  args.first = first_column(l);
  args.exponentials = gradient_of(inputs, l, "exponentials", args.logits, l.type);
  args.stats = inputs.output("stats", {l.rows, 3}, l.type);
  return args;
}

// The second of three ranks; the others' largest logits are above and below its own.
VocabularyCrossEntropyArgs vocabulary_cross_entropy_args(Inputs& inputs, const Logits& l) {
  VocabularyCrossEntropyArgs args{
      .exponentials = inputs.positive("exponentials", {l.rows, l.vocabulary}, l.type, 0, l.layout)};
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
      const double of_label = t % 4 == 1 ? 4 : 0.5;  // 4: the largest of all ranks' logits
      stats.push_back(rank == holder ? of_label : -std::numeric_limits<double>::infinity());
    }
  }
  args.stats = inputs.values("stats", {3, l.rows, 3}, l.type, stats);
  args.loss = inputs.output("loss", {l.rows}, l.type);
  args.dlogits = gradient_of(inputs, l, "dlogits", args.exponentials, l.gradient);
  if (l.hits) args.hits = inputs.output("hits", {l.rows}, l.type);
  return args;
}

// Gradients of labels are near 1 where the rms is 1 / sqrt(V), so their last bit is sqrt(V) / 8 of
// what `tolerance` allows for.
double gradient_tolerance(const Logits& l, double roundings) {
  return tolerance(l.with_gradient ? l.gradient : accumulator(l.type), roundings) *
         std::max(1.0, std::sqrt(l.vocabulary) / 8);
}

// Half of GPT-2's vocabulary and a quarter of a Llama's, with and without gradient.
void add_divided_cases(std::vector<Case>& cases) {
  for (const auto& [type, gradient] : {std::pair{DType::f32, DType::f32},
                                       {DType::f32, DType::bf16},
                                       {DType::f32, DType::f16},
                                       {DType::f64, DType::f64}}) {
    const auto add = [&](Logits l) {
      l.type = type;
      l.gradient = gradient;
      if (type == gradient)
        cases.push_back(case_of(&Table::vocabulary_stats, l,
                                tolerance(type, 16 + std::sqrt(l.vocabulary)),
                                vocabulary_stats_args));
      // The sum is an input.
      cases.push_back(case_of(&Table::vocabulary_cross_entropy, l, gradient_tolerance(l, 16),
                              vocabulary_cross_entropy_args));
    };
    add({.rows = 1, .vocabulary = 1});
    add({.rows = 7, .vocabulary = 33, .layout = kMisaligned});
    add({.rows = 0, .vocabulary = 8});
    add({.rows = 5, .vocabulary = 0});
    add({.rows = 40, .vocabulary = 1000});
    if (type == gradient) {
      add({.rows = 8, .vocabulary = 129, .in_place = true});
      add({.rows = 8, .vocabulary = 129, .with_gradient = false});
    }
    add({.rows = 40, .vocabulary = 3, .hits = true});
    if (type != DType::f32 || !trained(gradient)) continue;
    for (const auto& [rows, vocabulary] : {std::pair{1280, 25129}, {4096, 8000}})
      add({.rows = rows, .vocabulary = vocabulary, .in_place = gradient == type, .real = true});
  }
}

}  // namespace

void add_cross_entropy_cases(std::vector<Case>& cases) {
  for (const auto& [type, gradient] : {std::pair{DType::f32, DType::f32},
                                       {DType::f32, DType::bf16},
                                       {DType::bf16, DType::f32},
                                       {DType::bf16, DType::bf16},
                                       {DType::f32, DType::f16},
                                       {DType::f16, DType::f32},
                                       {DType::f16, DType::f16},
                                       {DType::f64, DType::f64}}) {
    const auto add = [&](Logits l) {
      l.type = type;
      l.gradient = gradient;
      // A sum over V of exps (2 u, of scores of size 10).
      cases.push_back(case_of(&Table::cross_entropy, l,
                              gradient_tolerance(l, 16 + std::sqrt(l.vocabulary)),
                              cross_entropy_args));
    };
    add({.rows = 1, .vocabulary = 1});
    add({.rows = 2, .vocabulary = 2});
    add({.rows = 7, .vocabulary = 33, .layout = kMisaligned});
    add({.rows = 0, .vocabulary = 8});
    add({.rows = 40, .vocabulary = 1000});
    add({.rows = 2, .vocabulary = 130000});  // more than a multiprocessor of a GPU keeps
    if (type == gradient) {
      add({.rows = 8, .vocabulary = 129, .in_place = true});
      add({.rows = 8, .vocabulary = 129, .with_gradient = false});
    }
    add({.rows = 40, .vocabulary = 3, .hits = true});
    if (type != DType::f32 || !trained(gradient)) continue;  // logits of training are f32
    for (const auto& [rows, vocabulary] : {std::pair{640, 50257}, {1024, 32000}})
      add({.rows = rows, .vocabulary = vocabulary, .in_place = gradient == type, .real = true});
  }
  add_divided_cases(cases);
}

}  // namespace megatron::kernels
