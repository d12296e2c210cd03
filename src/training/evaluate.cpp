#include "training/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "training/rank_sums.h"
#include "training/reference_pass.h"

namespace megatron::training {

namespace {

// Number of samples whose losses are held at once.
constexpr int64_t kHeld = 1 << 14;

// Numbers that describe a sample's losses: sum, count, then both of each metric.
size_t numbers_of(const LossPass& pass) { return 2 + 2 * pass.metrics().size(); }

// Adds the losses of each sequence of a batch.
void put_sums(std::span<const LossSum> of_sequences, std::span<double> sums, size_t numbers) {
  for (size_t i = 0; i < of_sequences.size(); ++i) {
    const LossSum& one = of_sequences[i];
    double* const to = &sums[i * numbers];
    to[0] += one.sum;
    to[1] += one.tokens;
    for (size_t m = 0; m < one.metrics.size(); ++m) {
      to[2 + 2 * m] += one.metrics[m].sum;
      to[3 + 2 * m] += one.metrics[m].weight;
    }
  }
}

LossSum sum_of(std::span<const double> numbers) {
  LossSum sum{.sum = numbers[0], .tokens = numbers[1]};
  for (size_t m = 2; m < numbers.size(); m += 2)
    sum.metrics.push_back({numbers[m], numbers[m + 1]});
  return sum;
}

}  // namespace

std::vector<LossSum> evaluate_samples(LossPass& pass, const data::Dataset& set,
                                      std::span<const int64_t> indices, int64_t micro_batch,
                                      int64_t seq_length) {
  if (indices.empty()) return {};
  const size_t numbers = numbers_of(pass);
  std::vector<double> sums(numbers * indices.size());
  // On meta, running only the first passes and the last one represents all of them.
  const bool planned = !pass.runtime().device().has_data();
  const comm::Group& samples = pass.ranks().samples();
  const auto together = static_cast<size_t>(micro_batch);
  const size_t stride = together * static_cast<size_t>(samples.size());
  corpus::BatchReader reader(set, pass.ranks().tokens(micro_batch, seq_length),
                             pass.model()->facts().two_sided);
  std::vector<corpus::HostBatch> batches(pass.together());
  std::vector<size_t> begins(
      batches.size());  // index in `indices` of the first sample of each batch
  size_t held = 0;
  const auto run = [&] {
    if (held == 0) return;
    if (pass.reference() != nullptr) pass.reference()->fill(set, std::span(batches).first(held));
    pass.run(std::span(batches).first(held), [&](int i, std::span<const LossSum> of_sequences) {
      const size_t begin = begins[static_cast<size_t>(i)];
      if (begin >= indices.size()) return;
      put_sums(of_sequences,
               std::span(sums).subspan(numbers * begin, numbers * of_sequences.size()), numbers);
    });
    held = 0;
  };
  // A rank without samples in the last round evaluates others without counting them, because all
  // ranks may have to gather parameters in a pass.
  for (size_t turn = 0; turn < indices.size(); turn += stride) {
    const size_t begin = turn + together * static_cast<size_t>(samples.rank());
    const size_t first = begin < indices.size() ? begin : 0;
    const auto taken = indices.subspan(first, std::min(together, indices.size() - first));
    if (planned && turn >= 2 * batches.size() * stride && turn + stride < indices.size()) continue;
    reader.read(taken, batches[held]);
    begins[held++] = begin;
    if (held == batches.size()) run();
  }
  run();
  sums = sum_over_tokens(sums, pass.ranks(), pass.runtime(), "evaluate.sums");
  std::vector<LossSum> losses;
  for (size_t i = 0; i < indices.size(); ++i)
    losses.push_back(sum_of(std::span(sums).subspan(numbers * i, numbers)));
  return losses;
}

LossSum evaluate(LossPass& pass, const data::Dataset& set, int64_t first, int64_t count,
                 int64_t micro_batch, int64_t seq_length) {
  const int64_t together = micro_batch * pass.ranks().samples().size();
  const int64_t chunk = std::max<int64_t>(1, kHeld / together) * together;
  LossSum sum;
  std::vector<int64_t> indices;
  for (int64_t begin = first; begin < first + count; begin += chunk) {
    indices.resize(static_cast<size_t>(std::min(chunk, first + count - begin)));
    std::iota(indices.begin(), indices.end(), begin);
    for (const LossSum& sample : evaluate_samples(pass, set, indices, micro_batch, seq_length))
      sum += sample;
  }
  return sum;
}

LossSum evaluate_all(LossPass& pass, const data::Dataset& set, int64_t micro_batch,
                     int64_t seq_length) {
  return evaluate(pass, set, 0, set.size(), micro_batch, seq_length);
}

double unigram_entropy(const data::Dataset& set, int64_t first, int64_t count, int64_t seq_length) {
  LabelCounts counts;
  corpus::BatchReader reader(set, {.length = seq_length});
  corpus::HostBatch batch;
  for (int64_t i = first; i < first + count; ++i) {
    reader.read(std::span(&i, 1), batch);
    for (size_t t = 0; t < batch.labels.size(); ++t)
      if (batch.loss_mask[t] != 0) counts.add(batch.labels[t]);
  }
  return counts.entropy();
}

double LabelCounts::entropy() const {
  double entropy = 0;
  for (const auto& [token, n] : counts_) {
    const double p = static_cast<double>(n) / static_cast<double>(total_);
    entropy -= p * std::log(p);
  }
  return entropy;
}

}  // namespace megatron::training
