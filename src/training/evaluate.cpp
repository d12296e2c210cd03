#include "training/evaluate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "training/rank_sums.h"

namespace megatron::training {

namespace {

// Number of samples whose losses are held at once.
constexpr int64_t kHeld = 1 << 14;

// Adds the losses and the number of this rank's counted tokens of each sequence of a batch, one
// pair after the other.
void put_sums(const corpus::HostBatch& batch, std::span<const double> losses,
              std::span<double> sums) {
  const auto length = static_cast<size_t>(batch.layout.held());
  for (size_t i = 0; i < losses.size(); ++i) {
    sums[i / length * 2] += losses[i];
    sums[i / length * 2 + 1] += batch.loss_mask[i];
  }
}

// Sums `mine` over ranks. Each element is zero except on the last-stage ranks that hold tokens of
// its sample. Reduces a fixed number of elements at a time, so that memory does not depend on the
// size of the set.
std::vector<double> gather(std::span<const double> mine, LossPass& pass) {
  constexpr size_t kUnroll = 2048;
  Runtime& runtime = pass.runtime();
  Tensor piece = Tensor::empty(runtime.arena(MemoryClass::activations),
                               {static_cast<int64_t>(kUnroll)}, DType::f64, "evaluate.sums");
  const bool has_data = runtime.device().has_data();
  std::vector<double> all(mine.begin(), mine.end());
  for (size_t begin = 0; begin < all.size(); begin += kUnroll) {
    const std::span<double> part =
        std::span(all).subspan(begin, std::min(kUnroll, all.size() - begin));
    std::array<double, kUnroll> values{};
    std::ranges::copy(part, values.begin());
    if (has_data) copy_bytes_from(piece, std::as_bytes(std::span(values)));
    sum_over_tokens(piece, pass.ranks(), runtime.stream(), "evaluate.sums");
    runtime.stream().synchronize();
    if (!has_data) continue;
    copy_bytes_to(piece, std::as_writable_bytes(std::span(values)));
    std::ranges::copy(std::span(values).first(part.size()), part.begin());
  }
  return all;
}

}  // namespace

std::vector<LossSum> evaluate_samples(LossPass& pass, const data::Dataset& set,
                                      std::span<const int64_t> indices, int64_t micro_batch,
                                      int64_t seq_length) {
  if (indices.empty()) return {};
  std::vector<double> sums(2 * indices.size());
  // On meta, running only the first passes and the last one represents all of them.
  const bool planned = !pass.runtime().device().has_data();
  const comm::Group& samples = pass.ranks().samples();
  const auto together = static_cast<size_t>(micro_batch);
  const size_t stride = together * static_cast<size_t>(samples.size());
  corpus::BatchReader reader(set, pass.ranks().tokens(micro_batch, seq_length));
  std::vector<corpus::HostBatch> batches(pass.together());
  std::vector<size_t> begins(
      batches.size());  // index in `indices` of the first sample of each batch
  size_t held = 0;
  const auto run = [&] {
    if (held == 0) return;
    pass.run(std::span(batches).first(held), [&](int i, std::span<const double> losses) {
      if (begins[static_cast<size_t>(i)] >= indices.size()) return;
      const corpus::HostBatch& batch = batches[static_cast<size_t>(i)];
      put_sums(batch, losses,
               std::span(sums).subspan(2 * begins[static_cast<size_t>(i)],
                                       2 * static_cast<size_t>(batch.layout.sequences)));
    });
    held = 0;
  };
  // A rank without samples in the last turn runs others, which are not counted, because parameters
  // may be gathered among all ranks in a pass.
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
  sums = gather(sums, pass);
  std::vector<LossSum> losses(indices.size());
  for (size_t i = 0; i < losses.size(); ++i) losses[i] = {sums[2 * i], sums[2 * i + 1]};
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
    for (const LossSum& sample : evaluate_samples(pass, set, indices, micro_batch, seq_length)) {
      sum.sum += sample.sum;
      sum.tokens += sample.tokens;
    }
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
