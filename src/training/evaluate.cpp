#include "training/evaluate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace megatron::training {

namespace {

// Samples whose losses are held at once.
constexpr int64_t kHeld = 1 << 14;

// Loss of each token [B*S] in a forward pass; 0 where the mask hides the label.
std::vector<double> token_losses(const models::Stage& stage, DeviceBatch& device_batch,
                                 const HostBatch& batch, Runtime& runtime,
                                 const StepOptions& options) {
  const nn::Batch& device =
      device_batch.fill(batch, LossScope::token, options.vocabulary, options.positions);
  Tape tape(runtime, Tape::Mode::infer, options.table);
  const Bundle out = models::forward(stage, tape, device, models::Phase::evaluate);
  const Tensor loss = models::head_loss(stage, tape, out, device);
  runtime.stream().synchronize();
  if (!runtime.device().has_data()) return std::vector<double>(batch.tokens.size());
  return to_doubles(loss);
}

// Sum and number of counted tokens of each sequence of a batch, one pair after the other.
void put_sums(const HostBatch& batch, std::span<const double> losses, std::span<double> sums) {
  const auto length = static_cast<size_t>(batch.length);
  for (size_t i = 0; i < losses.size(); ++i) {
    sums[i / length * 2] += losses[i];
    sums[i / length * 2 + 1] += batch.loss_mask[i];
  }
}

// Every place of `mine` is zero on all ranks but one.
std::vector<double> gather(std::span<const double> mine, comm::Group& ranks, Runtime& runtime) {
  Tensor all = Tensor::empty(runtime.arena(MemoryClass::activations),
                             {static_cast<int64_t>(mine.size())}, DType::f64, "evaluate.sums");
  const bool has_data = runtime.device().has_data();
  if (has_data) copy_from(all, mine);
  ranks.all_reduce(all, comm::Reduce::sum, runtime.stream(), "evaluate.sums")
      .wait(runtime.stream());
  runtime.stream().synchronize();
  return has_data ? to_doubles(all) : std::vector<double>(mine.begin(), mine.end());
}

}  // namespace

std::vector<LossSum> evaluate_samples(const models::Stage& stage, DType type,
                                      const data::Dataset& set, std::span<const int64_t> indices,
                                      int64_t micro_batch, int64_t seq_length,
                                      comm::Group& data_parallel, Runtime& runtime,
                                      const StepOptions& options) {
  if (indices.empty()) return {};
  DeviceBatch device_batch(runtime, type);
  std::vector<double> sums(2 * indices.size());
  const bool planned =
      !runtime.device().has_data();  // then the first passes and the last stand for all
  const auto together = static_cast<size_t>(micro_batch);
  const size_t stride = together * static_cast<size_t>(data_parallel.size());
  BatchReader reader(set, seq_length);
  HostBatch batch;
  for (size_t begin = together * static_cast<size_t>(data_parallel.rank()); begin < indices.size();
       begin += stride) {
    const auto taken = indices.subspan(begin, std::min(together, indices.size() - begin));
    if (planned && begin >= 2 * stride && begin + stride < indices.size()) continue;
    reader.read(taken, batch);
    put_sums(batch, token_losses(stage, device_batch, batch, runtime, options),
             std::span(sums).subspan(2 * begin, 2 * taken.size()));
  }
  sums = gather(sums, data_parallel, runtime);
  std::vector<LossSum> losses(indices.size());
  for (size_t i = 0; i < losses.size(); ++i) losses[i] = {sums[2 * i], sums[2 * i + 1]};
  return losses;
}

LossSum evaluate(const models::Stage& stage, DType type, const data::Dataset& set, int64_t first,
                 int64_t count, int64_t micro_batch, int64_t seq_length, comm::Group& data_parallel,
                 Runtime& runtime, const StepOptions& options) {
  const int64_t together = micro_batch * data_parallel.size();
  const int64_t chunk = std::max<int64_t>(1, kHeld / together) * together;
  LossSum sum;
  std::vector<int64_t> indices;
  for (int64_t begin = first; begin < first + count; begin += chunk) {
    indices.resize(static_cast<size_t>(std::min(chunk, first + count - begin)));
    std::iota(indices.begin(), indices.end(), begin);
    for (const LossSum& sample : evaluate_samples(stage, type, set, indices, micro_batch,
                                                  seq_length, data_parallel, runtime, options)) {
      sum.sum += sample.sum;
      sum.tokens += sample.tokens;
    }
  }
  return sum;
}

LossSum evaluate_all(const models::Stage& stage, DType type, const data::Dataset& set,
                     int64_t micro_batch, int64_t seq_length, comm::Group& data_parallel,
                     Runtime& runtime, const StepOptions& options) {
  return evaluate(stage, type, set, 0, set.size(), micro_batch, seq_length, data_parallel, runtime,
                  options);
}

double unigram_entropy(const data::Dataset& set, int64_t first, int64_t count, int64_t seq_length) {
  LabelCounts counts;
  BatchReader reader(set, seq_length);
  HostBatch batch;
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
