#include "corpus/batch.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/table.h"

namespace megatron::corpus {

double HostBatch::counted() const {
  double sum = 0;
  for (const float m : loss_mask) sum += m;
  return sum;
}

namespace {

void check_range(const std::vector<int32_t>& values, int64_t end, std::string_view what,
                 std::string_view limit) {
  for (const int32_t v : values) {
    MG_CHECK(v >= 0 && v < end, "{} {} is outside [0, {}): the data does not match {}", what, v,
             end, limit);
  }
}

void check_segments(const HostBatch& host) {
  MG_CHECK(host.segment_starts.size() == host.tokens.size(),
           "a batch has {} segment starts and {} tokens: it needs one per token, or none",
           host.segment_starts.size(), host.tokens.size());
  for (size_t i = 0; i < host.segment_starts.size(); ++i) {
    const int32_t begin = host.segment_starts[i];
    const int64_t at = static_cast<int64_t>(i) % host.length;
    MG_CHECK(begin >= 0 && begin <= at,
             "the segment of token {} of a sequence starts at {}; the start must lie in [0, {}]",
             at, begin, at);
  }
}

// Labels are tokens, or classes of a score head.
void check_labels(const HostBatch& host, const models::Model& model) {
  const bool scores = model->score_labels() > 0;
  MG_CHECK(host.targets.empty() == (model->score_labels() != 1),
           "a batch has {} targets: a regression model needs one per token, other models need none",
           host.targets.size());
  const int64_t end = scores ? model->score_labels() : model->vocab_size();
  for (size_t i = 0; i < host.labels.size(); ++i) {
    MG_CHECK(host.loss_mask[i] == 0 || (host.labels[i] >= 0 && host.labels[i] < end),
             "label {} is outside [0, {}): the data does not match the {}", host.labels[i], end,
             scores ? "classes of the model's score head" : "vocabulary");
  }
}

}  // namespace

void DeviceBatch::allocate(const HostBatch& host) {
  const int64_t tokens = host.sequences * host.length;
  const bool confined = !host.segment_starts.empty(), numbers = !host.targets.empty();
  if (batch_.tokens.defined() && batch_.sequences == host.sequences &&
      batch_.length == host.length && batch_.segment_starts.defined() == confined &&
      batch_.targets.defined() == numbers)
    return;
  const auto tensor = [&](int64_t size, DType type, const char* label) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), {size}, type, label);
  };
  const DType wide = kernels::accumulator(type_);
  batch_ = {.sequences = host.sequences, .length = host.length};
  batch_.tokens = tensor(tokens, DType::i32, "batch.tokens");
  batch_.positions = tensor(tokens, DType::i32, "batch.positions");
  batch_.labels = tensor(tokens, DType::i32, "batch.labels");
  batch_.loss_weights = tensor(tokens, wide, "batch.loss_weights");
  batch_.sample_ids = tensor(host.sequences, DType::i64, "batch.sample_ids");
  if (confined) batch_.segment_starts = tensor(tokens, DType::i32, "batch.segment_starts");
  if (numbers) batch_.targets = tensor(tokens, wide, "batch.targets");
}

const nn::Batch& DeviceBatch::fill(const HostBatch& host, const models::Model& model,
                                   settings::LossScope scope, double loss_scale) {
  check_range(host.tokens, model->vocab_size(), "token id",
              "the vocabulary (--vocab-size, or the tokenizer of the data)");
  check_range(host.positions, model->max_position_embeddings(), "position",
              "--max-position-embeddings");
  if (!host.segment_starts.empty()) check_segments(host);
  allocate(host);
  if (!runtime_.device().has_data()) return batch_;
  check_labels(host, model);
  Stream& stream = runtime_.stream();
  copy_from(batch_.tokens, std::span<const int32_t>(host.tokens), stream);
  copy_from(batch_.positions, std::span<const int32_t>(host.positions), stream);
  copy_from(batch_.labels, std::span<const int32_t>(host.labels), stream);
  if (batch_.segment_starts.defined())
    copy_from(batch_.segment_starts, std::span<const int32_t>(host.segment_starts), stream);
  if (batch_.targets.defined())
    copy_from(batch_.targets, std::span<const double>(host.targets), stream);
  copy_from(batch_.sample_ids, std::span<const int64_t>(host.sample_ids), stream);
  const double divisor = scope == settings::LossScope::token ? 1 : std::max(host.counted(), 1.0);
  weights_.resize(host.loss_mask.size());
  for (size_t i = 0; i < weights_.size(); ++i)
    weights_[i] = host.loss_mask[i] / divisor * loss_scale;
  copy_from(batch_.loss_weights, std::span<const double>(weights_), stream);
  return batch_;
}

}  // namespace megatron::corpus
