#include "corpus/batch.h"

#include <algorithm>
#include <numeric>

#include "base/divide.h"
#include "base/error.h"
#include "kernels/table.h"

namespace megatron::corpus {

double HostBatch::counted() const {
  double sum = 0;
  for (const float m : loss_mask) sum += m;
  return sum;
}

void pad_sequences(HostBatch& batch, int64_t multiple) {
  const int64_t length = batch.layout.length, padded = ceil_div(length, multiple) * multiple;
  if (padded == length) return;
  const auto pad = [&](auto& values) {
    if (values.empty()) return;
    std::remove_reference_t<decltype(values)> all(
        static_cast<size_t>(batch.layout.sequences * padded));
    for (int64_t s = 0; s < batch.layout.sequences; ++s)
      std::copy_n(values.begin() + s * length, length, all.begin() + s * padded);
    values = std::move(all);
  };
  for (auto* values : {&batch.tokens, &batch.positions, &batch.labels, &batch.segment_starts})
    pad(*values);
  pad(batch.targets);
  pad(batch.loss_mask);
  batch.layout.length = padded;
  batch.text_length = length;
}

void keep_tokens(HostBatch& batch, const parallel::TokenLayout& layout) {
  batch.layout.rank = layout.rank;
  batch.layout.ranks = layout.ranks;
  if (layout.ranks == 1) return;
  batch.counted_by_all = batch.counted();
  batch.all_segment_starts = batch.segment_starts;
  for (auto* values : {&batch.tokens, &batch.labels, &batch.positions, &batch.segment_starts})
    parallel::keep_held(batch.layout, *values);
  parallel::keep_held(batch.layout, batch.targets);
  parallel::keep_held(batch.layout, batch.loss_mask);
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
  std::vector<int64_t> indices(static_cast<size_t>(host.layout.length));
  std::iota(indices.begin(), indices.end(), 0);
  parallel::TokenLayout one = host.layout;
  one.sequences = 1;
  parallel::keep_held(one, indices);
  for (size_t i = 0; i < host.segment_starts.size(); ++i) {
    const int32_t begin = host.segment_starts[i];
    const int64_t at = indices[i % indices.size()];
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
  const int64_t tokens = host.layout.rows();
  const bool confined = !host.segment_starts.empty(), numbers = !host.targets.empty();
  if (batch_.tokens.defined() && batch_.layout == host.layout &&
      batch_.context == host.text_length && batch_.segment_starts.defined() == confined &&
      batch_.targets.defined() == numbers)
    return;
  const auto tensor = [&](int64_t size, DType type, const char* label) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), {size}, type, label);
  };
  const DType wide = kernels::accumulator(type_);
  batch_ = {.layout = host.layout, .context = host.text_length};
  batch_.tokens = tensor(tokens, DType::i32, "batch.tokens");
  batch_.positions = tensor(tokens, DType::i32, "batch.positions");
  batch_.labels = tensor(tokens, DType::i32, "batch.labels");
  batch_.loss_weights = tensor(tokens, wide, "batch.loss_weights");
  batch_.sample_ids = tensor(host.layout.sequences, DType::i64, "batch.sample_ids");
  if (confined) batch_.segment_starts = tensor(tokens, DType::i32, "batch.segment_starts");
  if (host.layout.ranks > 1) {
    const int64_t all = host.layout.sequences * host.layout.length;
    batch_.rank_indices = tensor(all, DType::i32, "batch.rank_indices");
    batch_.all_indices = tensor(all, DType::i32, "batch.all_indices");
    if (confined) batch_.all_segment_starts = tensor(all, DType::i32, "batch.all_segment_starts");
    if (runtime_.device().has_data()) fill_indices();
  }
  if (numbers) batch_.targets = tensor(tokens, wide, "batch.targets");
}

void DeviceBatch::fill_indices() {
  const parallel::TokenLayout& layout = batch_.layout;
  std::vector<int32_t> all(static_cast<size_t>(layout.sequences * layout.length));
  for (size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<int32_t>(i % static_cast<size_t>(layout.length));
  copy_from(batch_.all_indices, std::span<const int32_t>(all), runtime_.stream());
  std::vector<int32_t> by_rank;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    std::vector<int32_t> held = all;
    parallel::keep_held(layout.of_rank(rank), held);
    by_rank.insert(by_rank.end(), held.begin(), held.end());
  }
  copy_from(batch_.rank_indices, std::span<const int32_t>(by_rank), runtime_.stream());
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
  if (batch_.all_segment_starts.defined())
    copy_from(batch_.all_segment_starts, std::span<const int32_t>(host.all_segment_starts), stream);
  copy_from(batch_.sample_ids, std::span<const int64_t>(host.sample_ids), stream);
  const double divisor = scope == settings::LossScope::token
                             ? 1
                             : std::max(host.counted_by_all.value_or(host.counted()), 1.0);
  weights_.resize(host.loss_mask.size());
  for (size_t i = 0; i < weights_.size(); ++i)
    weights_[i] = host.loss_mask[i] / divisor * loss_scale;
  copy_from(batch_.loss_weights, std::span<const double>(weights_), stream);
  return batch_;
}

void DeviceBatch::list_labelled(const HostBatch& host) {
  const int64_t tokens = host.layout.rows();
  if (!labelled_.rows.defined() || labelled_.rows.size(0) != tokens) {
    Arena& arena = runtime_.arena(MemoryClass::activations);
    labelled_ = {Tensor::empty(arena, {tokens}, DType::i32, "batch.labelled_rows"),
                 Tensor::empty(arena, {tokens}, DType::i32, "batch.labelled")};
  }
  batch_.labelled = labelled_;
  if (!runtime_.device().has_data()) return;
  std::vector<int32_t> rows, labels;
  for (size_t i = 0; i < host.labels.size(); ++i) {
    if (host.loss_mask[i] == 0) continue;
    rows.push_back(static_cast<int32_t>(i));
    labels.push_back(host.labels[i]);
  }
  const auto count = static_cast<int64_t>(rows.size());
  batch_.labelled = {labelled_.rows.slice(0, 0, count), labelled_.labels.slice(0, 0, count)};
  copy_from(batch_.labelled.rows, std::span<const int32_t>(rows), runtime_.stream());
  copy_from(batch_.labelled.labels, std::span<const int32_t>(labels), runtime_.stream());
}

}  // namespace megatron::corpus
