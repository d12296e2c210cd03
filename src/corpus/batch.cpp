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
    MG_CHECK(v >= 0 && v < end, "{} {} is outside [0, {}): the data does not fit {}", what, v, end,
             limit);
  }
}

void check_segments(const HostBatch& host) {
  MG_CHECK(host.segment_starts.size() == host.tokens.size(),
           "a batch has {} segment begins and {} tokens: attention is confined for all of them or "
           "for none",
           host.segment_starts.size(), host.tokens.size());
  for (size_t i = 0; i < host.segment_starts.size(); ++i) {
    const int32_t begin = host.segment_starts[i];
    const int64_t at = static_cast<int64_t>(i) % host.length;
    MG_CHECK(begin >= 0 && begin <= at,
             "the segment of token {} of a sequence begins at {}; it must lie in [0, {}]", at,
             begin, at);
  }
}

}  // namespace

const nn::Batch& DeviceBatch::fill(const HostBatch& host, settings::LossScope scope,
                                   int64_t vocabulary, int64_t positions, double loss_scale) {
  check_range(host.tokens, vocabulary, "token id",
              "the vocabulary (--vocab-size, or the tokenizer of the data)");
  check_range(host.positions, positions, "position", "--max-position-embeddings");
  const int64_t tokens = host.sequences * host.length;
  const bool confined = !host.segment_starts.empty();
  if (confined) check_segments(host);
  if (!batch_.tokens.defined() || batch_.sequences != host.sequences ||
      batch_.length != host.length || batch_.segment_starts.defined() != confined) {
    Arena& arena = runtime_.arena(MemoryClass::activations);
    batch_ = {.sequences = host.sequences,
              .length = host.length,
              .tokens = Tensor::empty(arena, {tokens}, DType::i32, "batch.tokens"),
              .positions = Tensor::empty(arena, {tokens}, DType::i32, "batch.positions"),
              .labels = Tensor::empty(arena, {tokens}, DType::i32, "batch.labels"),
              .loss_weights =
                  Tensor::empty(arena, {tokens}, kernels::accumulator(type_), "batch.loss_weights"),
              .sample_ids = Tensor::empty(arena, {host.sequences}, DType::i64, "batch.sample_ids"),
              .segment_starts =
                  confined ? Tensor::empty(arena, {tokens}, DType::i32, "batch.segment_starts")
                           : Tensor()};
  }
  if (!runtime_.device().has_data()) return batch_;
  for (size_t i = 0; i < host.labels.size(); ++i) {
    MG_CHECK(host.loss_mask[i] == 0 || (host.labels[i] >= 0 && host.labels[i] < vocabulary),
             "label {} is outside [0, {}): the data does not fit the vocabulary", host.labels[i],
             vocabulary);
  }
  Stream& stream = runtime_.stream();
  copy_from(batch_.tokens, std::span<const int32_t>(host.tokens), stream);
  copy_from(batch_.positions, std::span<const int32_t>(host.positions), stream);
  copy_from(batch_.labels, std::span<const int32_t>(host.labels), stream);
  if (confined)
    copy_from(batch_.segment_starts, std::span<const int32_t>(host.segment_starts), stream);
  copy_from(batch_.sample_ids, std::span<const int64_t>(host.sample_ids), stream);
  const double divisor = scope == settings::LossScope::token ? 1 : std::max(host.counted(), 1.0);
  weights_.resize(host.loss_mask.size());
  for (size_t i = 0; i < weights_.size(); ++i)
    weights_[i] = host.loss_mask[i] / divisor * loss_scale;
  copy_from(batch_.loss_weights, std::span<const double>(weights_), stream);
  return batch_;
}

}  // namespace megatron::corpus
