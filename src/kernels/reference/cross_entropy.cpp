#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/error.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
void evaluate(const CrossEntropyArgs& args, Stream& stream) {
  const std::vector<C> logits = load<C>(args.logits), weights = load<C>(args.weights);
  const std::vector<int64_t> labels = load_integers(args.labels);
  const int64_t rows = args.logits.size(0), v = args.logits.size(1);
  std::vector<C> losses(rows), hits(rows), dlogits(args.dlogits.defined() ? logits.size() : 0);
  for_rows(stream, rows, 16, [&](int64_t t) {
    if (weights[t] == 0) return;
    MG_ASSERT(labels[t] >= 0 && labels[t] < v);
    const C* row = logits.data() + t * v;
    const C maximum = *std::max_element(row, row + v);
    C sum = 0;
    for (int64_t i = 0; i < v; ++i) sum += std::exp(row[i] - maximum);
    losses[t] = std::log(sum) + (maximum - row[labels[t]]);
    hits[t] = row[labels[t]] >= maximum ? 1 : 0;
    if (dlogits.empty()) return;
    for (int64_t i = 0; i < v; ++i) {
      dlogits[t * v + i] =
          weights[t] * (std::exp(row[i] - maximum) / sum - (i == labels[t] ? 1 : 0));
    }
  });
  store(args.loss, losses);
  if (args.hits.defined()) store(args.hits, hits);
  if (args.dlogits.defined()) store(args.dlogits, dlogits);
}

template <class C>
constexpr C kNone = -std::numeric_limits<C>::infinity();

template <class C>
void gather_stats(const VocabularyStatsArgs& args, Stream& stream) {
  std::vector<C> logits = load<C>(args.logits), stats(args.stats.elements());
  const std::vector<C> weights = load<C>(args.weights);
  const std::vector<int64_t> labels = load_integers(args.labels);
  const int64_t rows = args.logits.size(0), v = args.logits.size(1);
  for_rows(stream, rows, 16, [&](int64_t t) {
    C* row = logits.data() + t * v;
    const int64_t label = labels[t] - args.first;
    C most = kNone<C>, sum = 0, of_label = kNone<C>;
    if (weights[t] != 0) {
      if (label >= 0 && label < v) of_label = row[label];
      for (int64_t i = 0; i < v; ++i) most = std::max(most, row[i]);
      for (int64_t i = 0; i < v; ++i) sum += row[i] = std::exp(row[i] - most);
    } else {
      std::fill_n(row, v, C{0});
    }
    stats[3 * t] = most;
    stats[3 * t + 1] = sum;
    stats[3 * t + 2] = of_label;
  });
  store(args.stats, stats);
  if (args.exponentials.defined()) store(args.exponentials, logits);
}

template <class C>
void evaluate(const VocabularyCrossEntropyArgs& args, Stream& stream) {
  const std::vector<C> stats = load<C>(args.stats), weights = load<C>(args.weights);
  const std::vector<int64_t> labels = load_integers(args.labels);
  std::vector<C> gradient;
  if (args.dlogits.defined()) gradient = load<C>(args.exponentials);
  const int64_t ranks = args.stats.size(0), rows = args.stats.size(1);
  const int64_t v = gradient.empty() ? 0 : args.exponentials.size(1);
  std::vector<C> losses(rows), hits(rows);
  for_rows(stream, rows, 16, [&](int64_t t) {
    const std::span of_row(gradient.data() + t * v, static_cast<size_t>(v));
    if (weights[t] == 0) {
      std::ranges::fill(of_row, C{0});
      return;
    }
    const auto stat = [&](int64_t rank, int64_t i) { return stats[(rank * rows + t) * 3 + i]; };
    C most = kNone<C>, sum = 0, of_label = kNone<C>;
    for (int64_t r = 0; r < ranks; ++r) {
      most = std::max(most, stat(r, 0));
      if (stat(r, 2) != kNone<C>) of_label = stat(r, 2);
    }
    for (int64_t r = 0; r < ranks; ++r) sum += stat(r, 1) * std::exp(stat(r, 0) - most);
    losses[t] = std::log(sum) + (most - of_label);
    hits[t] = of_label >= most ? 1 : 0;
    const C share = std::exp(stat(args.rank, 0) - most) / sum;
    for (int64_t i = 0; i < v; ++i) {
      const C one = args.first + i == labels[t] ? 1 : 0;
      of_row[static_cast<size_t>(i)] = weights[t] * (of_row[static_cast<size_t>(i)] * share - one);
    }
  });
  store(args.loss, losses);
  if (args.hits.defined()) store(args.hits, hits);
  if (args.dlogits.defined()) store(args.dlogits, gradient);
}

}  // namespace

void vocabulary_stats(const VocabularyStatsArgs& args, Stream& stream) {
  args.logits.dtype() == DType::f64 ? gather_stats<double>(args, stream)
                                    : gather_stats<float>(args, stream);
}

void vocabulary_cross_entropy(const VocabularyCrossEntropyArgs& args, Stream& stream) {
  args.stats.dtype() == DType::f64 ? evaluate<double>(args, stream) : evaluate<float>(args, stream);
}

void cross_entropy(const CrossEntropyArgs& args, Stream& stream) {
  args.logits.dtype() == DType::f64 ? evaluate<double>(args, stream)
                                    : evaluate<float>(args, stream);
}

}  // namespace megatron::kernels::reference
