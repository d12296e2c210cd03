#include "training/evaluate.h"

#include <cmath>
#include <map>
#include <numeric>

#include "data/sampler.h"

namespace megatron::training {

namespace {

LossSum sum_over(const LossSum& mine, comm::Group& data_parallel, Runtime& runtime) {
  Tensor totals =
      Tensor::empty(runtime.arena(MemoryClass::activations), {2}, DType::f64, "evaluate.totals");
  const std::vector<double> values = {mine.sum, mine.tokens};
  copy_from(totals, std::span<const double>(values));
  data_parallel.all_reduce(totals, comm::Reduce::sum, runtime.stream(), "evaluate.totals")
      .wait(runtime.stream());
  return {read_scalar(totals.slice(0, 0, 1), runtime.stream()),
          read_scalar(totals.slice(0, 1, 1), runtime.stream())};
}

}  // namespace

LossSum evaluate(const models::Stage& stage, DType type, const data::Dataset& set, int64_t first,
                 int64_t count, int64_t micro_batch, int64_t seq_length, comm::Group& data_parallel,
                 Runtime& runtime, const StepOptions& options) {
  DeviceBatch device_batch(runtime, type);
  LossSum sum;
  const int64_t stride = micro_batch * data_parallel.size();
  for (int64_t begin = first + data_parallel.rank() * micro_batch; begin < first + count;
       begin += stride) {
    std::vector<int64_t> indices(static_cast<size_t>(std::min(micro_batch, first + count - begin)));
    std::iota(indices.begin(), indices.end(), begin);
    const LossSum batch =
        evaluate_batch(stage, device_batch, read_batch(set, indices, seq_length), runtime, options);
    sum.sum += batch.sum;
    sum.tokens += batch.tokens;
  }
  return sum_over(sum, data_parallel, runtime);
}

LossSum evaluate_all(const models::Stage& stage, DType type, const data::Dataset& set,
                     int64_t micro_batch, int64_t seq_length, comm::Group& data_parallel,
                     Runtime& runtime, const StepOptions& options) {
  DeviceBatch device_batch(runtime, type);
  data::FullPassSampler sampler(set.size(), data_parallel.rank(), data_parallel.size());
  LossSum sum;
  std::vector<int64_t> one, indices;
  for (bool more = true; more;) {
    indices.clear();
    while (static_cast<int64_t>(indices.size()) < micro_batch && (more = sampler.next(one)))
      indices.push_back(one[0]);
    if (indices.empty()) break;
    const LossSum batch =
        evaluate_batch(stage, device_batch, read_batch(set, indices, seq_length), runtime, options);
    sum.sum += batch.sum;
    sum.tokens += batch.tokens;
  }
  return sum_over(sum, data_parallel, runtime);
}

double unigram_entropy(const data::Dataset& set, int64_t first, int64_t count, int64_t seq_length) {
  std::map<int32_t, int64_t> counts;
  int64_t total = 0;
  for (int64_t i = first; i < first + count; ++i) {
    const HostBatch batch = read_batch(set, std::span(&i, 1), seq_length);
    for (size_t t = 0; t < batch.labels.size(); ++t) {
      if (batch.loss_mask[t] == 0) continue;
      ++counts[batch.labels[t]];
      ++total;
    }
  }
  double entropy = 0;
  for (const auto& [token, n] : counts) {
    const double p = static_cast<double>(n) / static_cast<double>(total);
    entropy -= p * std::log(p);
  }
  return entropy;
}

}  // namespace megatron::training
