#include "corpus/batch.h"

#include <algorithm>
#include <numeric>

#include "base/divide.h"
#include "base/error.h"
#include "corpus/predicted_tokens.h"
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
  const auto pad = [&]<class T>(std::vector<T>& values, T fill = {}) {
    if (values.empty()) return;
    std::vector<T> all(static_cast<size_t>(batch.layout.sequences * padded), fill);
    for (int64_t s = 0; s < batch.layout.sequences; ++s)
      std::copy_n(values.begin() + s * length, length, all.begin() + s * padded);
    values = std::move(all);
  };
  for (auto* values : {&batch.tokens, &batch.positions, &batch.labels, &batch.segment_starts})
    pad(*values);
  pad(batch.sources, -1);
  pad(batch.targets);
  pad(batch.reference);
  pad(batch.loss_mask);
  batch.layout.length = padded;
  batch.text_length = length;
}

HostBatch sequence_of(const HostBatch& batch, int64_t sequence) {
  HostBatch one{.layout = {.sequences = 1, .length = batch.layout.length}};
  one.text_length = batch.text_length;
  const auto take = [&](const auto& from, auto& to, int64_t length) {
    const auto begin = from.begin() + (from.empty() ? 0 : sequence * length);
    to.assign(begin, begin + (from.empty() ? 0 : length));
  };
  for (const auto member : {&HostBatch::tokens, &HostBatch::positions, &HostBatch::labels,
                            &HostBatch::segment_starts, &HostBatch::sources})
    take(batch.*member, one.*member, batch.layout.length);
  take(batch.targets, one.targets, batch.layout.length);
  take(batch.reference, one.reference, batch.layout.length);
  take(batch.loss_mask, one.loss_mask, batch.layout.length);
  take(batch.sample_ids, one.sample_ids, 1);
  return one;
}

void set_reference(HostBatch& batch, std::vector<double> of_sequences) {
  if (batch.cut_from == nullptr) {
    batch.reference = std::move(of_sequences);
    return;
  }
  auto whole = std::make_shared<HostBatch>(*batch.cut_from);
  whole->reference = std::move(of_sequences);
  batch.cut_from = std::move(whole);
}

std::span<const int32_t> HostBatch::indices() const {
  if (rank_indices.empty()) return {};
  const auto rows = static_cast<size_t>(layout.rows());
  return std::span(rank_indices).subspan(static_cast<size_t>(layout.rank) * rows, rows);
}

void keep_tokens(HostBatch& batch, const parallel::TokenLayout& layout) {
  batch.layout.rank = layout.rank;
  batch.layout.ranks = layout.ranks;
  batch.layout.inner = layout.inner;
  batch.rank_indices.clear();
  batch.cut_from.reset();
  if (layout.ranks == 1) return;
  auto whole = std::make_shared<HostBatch>(batch);
  whole->layout = {.sequences = batch.layout.sequences, .length = batch.layout.length};
  batch.cut_from = std::move(whole);
  batch.rank_indices = parallel::tokens_by_rank(batch.layout, batch.segment_starts);
  const std::span<const int32_t> held = batch.indices();
  const auto keep = [&](auto& values) {
    if (values.empty()) return;
    for (size_t i = 0; i < held.size(); ++i) {  // a token never moves towards the end
      const size_t sequence = i / static_cast<size_t>(batch.layout.held());
      values[i] = values[sequence * static_cast<size_t>(batch.layout.length) +
                         static_cast<size_t>(held[i])];
    }
    values.resize(held.size());
  };
  for (auto* values :
       {&batch.tokens, &batch.labels, &batch.positions, &batch.segment_starts, &batch.sources})
    keep(*values);
  keep(batch.targets);
  keep(batch.reference);
  keep(batch.loss_mask);
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
  const std::span<const int32_t> indices = host.indices();
  for (size_t i = 0; i < host.segment_starts.size(); ++i) {
    const int32_t begin = host.segment_starts[i];
    const int64_t at = indices.empty() ? static_cast<int64_t>(i) % host.layout.length : indices[i];
    MG_CHECK(begin >= 0 && begin <= at,
             "the segment of token {} of a sequence starts at {}; the start must lie in [0, {}]",
             at, begin, at);
  }
}

// Labels are tokens, or classes of a score head.
void check_labels(const HostBatch& host, const models::Model& model) {
  const bool scores = model->score_labels() > 0;
  MG_CHECK(model->score_labels() != 1 || host.targets.size() == host.tokens.size(),
           "a batch has {} targets: a regression model needs one per token", host.targets.size());
  const int64_t end = scores ? model->score_labels() : model->vocab_size();
  for (size_t i = 0; i < host.labels.size(); ++i) {
    MG_CHECK(host.loss_mask[i] == 0 || (host.labels[i] >= 0 && host.labels[i] < end),
             "label {} is outside [0, {}): the data does not match the {}", host.labels[i], end,
             scores ? "classes of the model's score head" : "vocabulary");
  }
}

}  // namespace

void DeviceBatch::allocate(const HostBatch& host, const models::ModelFacts& model) {
  const int64_t tokens = host.layout.rows();
  const bool confined = !host.segment_starts.empty(), numbers = !host.targets.empty(),
             pads = model.experts && !host.sources.empty(),
             by_source = sources_ > 0 && !host.sources.empty();
  if (batch_.tokens.defined() && batch_.layout == host.layout &&
      batch_.context == host.text_length && batch_.segment_starts.defined() == confined &&
      batch_.targets.defined() == numbers && batch_.real.rows.defined() == pads &&
      batch_.source_weights.defined() == by_source)
    return;
  const auto tensor = [&](int64_t size, DType type, const char* label) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), {size}, type, label);
  };
  const DType wide = kernels::accumulator(type_);
  batch_ = {.layout = host.layout, .context = host.text_length};
  batch_.context_tokens.layout = host.layout;
  batch_.tokens = tensor(tokens, DType::i32, "batch.tokens");
  batch_.positions = tensor(tokens, DType::i32, "batch.positions");
  batch_.labels = tensor(tokens, DType::i32, "batch.labels");
  batch_.loss_weights = tensor(tokens, wide, "batch.loss_weights");
  batch_.sample_ids = tensor(host.layout.sequences, DType::i64, "batch.sample_ids");
  if (pads) {
    const int64_t counts = host.layout.sequences + 1;
    batch_.real = {tensor(tokens, DType::i32, "batch.real_rows"),
                   tensor(counts, wide, "batch.real_numbers"),
                   tensor(counts, wide, "batch.real_inverses")};
  }
  if (by_source)
    batch_.source_weights =
        tensor(sources_ * tokens, wide, "batch.source_weights").view({sources_, tokens});
  if (confined) batch_.segment_starts = tensor(tokens, DType::i32, "batch.segment_starts");
  if (host.layout.ranks > 1) {
    parallel::ContextTokens& context = batch_.context_tokens;
    const int64_t all = host.layout.sequences * host.layout.length;
    for (Tensor* indices :
         {&context.rank_indices, &context.all_indices, &context.part_rows, &context.whole_rows})
      *indices = tensor(all, DType::i32, "batch.context_indices");
    if (confined) context.all_segment_starts = tensor(all, DType::i32, "batch.all_segment_starts");
    if (host.layout.inner > 1) {
      parallel::ExchangedTokens &inner = context.inner, &ring = context.ring;
      inner.layout = host.layout.inner_level();
      ring.layout = host.layout.ring_level();
      const int64_t of_group = host.layout.rows() * host.layout.inner;
      for (Tensor* rows : {&inner.part_rows, &inner.whole_rows})
        *rows = tensor(of_group, DType::i32, "batch.context_indices");
      if (confined)
        inner.all_segment_starts = tensor(of_group, DType::i32, "batch.all_segment_starts");
      ring.rank_indices = tensor(all, DType::i32, "batch.context_indices");
      ring.all_indices = context.all_indices;
    }
    if (!confined && runtime_.device().has_data()) fill_indices(host);
  }
  if (numbers) batch_.targets = tensor(tokens, wide, "batch.targets");
  for (int64_t depth = 0; depth < model.prediction.depths; ++depth)
    batch_.predicted.push_back({tensor(tokens, DType::i32, "batch.predicted_tokens"),
                                tensor(tokens, DType::i32, "batch.predicted_labels"),
                                tensor(tokens, wide, "batch.predicted_weights"),
                                tensor(tokens, wide, "batch.predicted_counts")});
}

// The objective has the mean of the depths' losses.
void DeviceBatch::fill_predicted(const HostBatch& host, const models::PredictionFacts& prediction,
                                 double scale) {
  const double share = scale * prediction.loss_scale / static_cast<double>(prediction.depths);
  for (size_t k = 0; k < batch_.predicted.size(); ++k) {
    nn::PredictedTokens& to = batch_.predicted[k];
    const HostPredicted from = predicted_tokens(host, static_cast<int64_t>(k) + 1);
    const auto held = static_cast<size_t>(host.layout.held());
    for (size_t i = 0; i < weights_.size(); ++i)
      weights_[i] = share * from.counts[i] * from.factors[i / held];
    copy_from(to.tokens, std::span<const int32_t>(from.tokens), runtime_.stream());
    copy_from(to.labels, std::span<const int32_t>(from.labels), runtime_.stream());
    copy_from(to.counts, std::span<const double>(from.counts), runtime_.stream());
    copy_from(to.loss_weights, std::span<const double>(weights_), runtime_.stream());
  }
}

void DeviceBatch::fill_real_tokens(const HostBatch& host) {
  std::vector<int32_t> rows(host.sources.size());
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = host.sources[i] < 0 ? -1 : static_cast<int32_t>(i);
  const std::vector<int32_t>& whole = host.whole().sources;
  std::vector<double> numbers(static_cast<size_t>(host.layout.sequences) + 1);
  for (size_t i = 0; i < whole.size(); ++i) {
    if (whole[i] < 0) continue;
    numbers[i / static_cast<size_t>(host.layout.length)] += 1;
    numbers.back() += 1;
  }
  std::vector<double> inverses;
  for (const double number : numbers) inverses.push_back(number == 0 ? 0 : 1 / number);
  copy_from(batch_.real.rows, std::span<const int32_t>(rows), runtime_.stream());
  copy_from(batch_.real.numbers, std::span<const double>(numbers), runtime_.stream());
  copy_from(batch_.real.inverses, std::span<const double>(inverses), runtime_.stream());
}

void DeviceBatch::fill_source_weights(const HostBatch& host) {
  std::vector<double> weights(host.sources.size());
  for (int64_t source = 0; source < sources_; ++source) {
    for (size_t i = 0; i < weights.size(); ++i)
      weights[i] = host.sources[i] == source ? host.loss_mask[i] : 0;
    Tensor row = batch_.source_weights.slice(0, source, 1);
    copy_from(row, std::span<const double>(weights), runtime_.stream());
  }
}

void DeviceBatch::fill_indices(const HostBatch& host) {
  const parallel::TokenLayout& layout = host.layout;
  const size_t count = host.rank_indices.size();
  std::vector<int32_t> all(count), part_rows(count), whole_rows(count);
  const auto length = static_cast<size_t>(layout.length), held = static_cast<size_t>(layout.held()),
             sequences = static_cast<size_t>(layout.sequences);
  for (size_t i = 0; i < count; ++i) {
    all[i] = static_cast<int32_t>(i % length);
    const size_t sequence = i / held % sequences,
                 row = sequence * length + static_cast<size_t>(host.rank_indices[i]);
    part_rows[i] = static_cast<int32_t>(row);
    whole_rows[row] = static_cast<int32_t>(i);
  }
  parallel::ContextTokens& context = batch_.context_tokens;
  for (const auto& [values, tensor] : {std::pair{&host.rank_indices, &context.rank_indices},
                                       {&all, &context.all_indices},
                                       {&part_rows, &context.part_rows},
                                       {&whole_rows, &context.whole_rows}})
    copy_from(*tensor, std::span<const int32_t>(*values), runtime_.stream());
  if (layout.inner > 1) fill_levels(host);
}

void DeviceBatch::fill_levels(const HostBatch& host) {
  parallel::ExchangedTokens &inner = batch_.context_tokens.inner,
                            &ring = batch_.context_tokens.ring;
  const std::vector<int32_t> groups = parallel::tokens_by_group(host.layout, host.rank_indices);
  const auto rows = static_cast<size_t>(ring.layout.rows()),  // of a group
      held = static_cast<size_t>(host.layout.held()),
             sequences = static_cast<size_t>(host.layout.sequences), length = rows / sequences,
             group = static_cast<size_t>(ring.layout.rank) * rows;
  std::vector<int32_t> part_rows(rows), whole_rows(rows), starts;
  for (size_t i = 0; i < rows; ++i) {
    const size_t sequence = i / held % sequences;
    const auto begin = groups.begin() + static_cast<std::ptrdiff_t>(group + sequence * length);
    const auto row =
        sequence * length +
        static_cast<size_t>(std::lower_bound(begin, begin + static_cast<std::ptrdiff_t>(length),
                                             host.rank_indices[group + i]) -
                            begin);
    part_rows[i] = static_cast<int32_t>(row);
    whole_rows[row] = static_cast<int32_t>(i);
  }
  for (size_t i = 0; i < rows && inner.all_segment_starts.defined(); ++i)
    starts.push_back(
        host.whole().segment_starts[i / length * static_cast<size_t>(host.layout.length) +
                                    static_cast<size_t>(groups[group + i])]);
  for (const auto& [values, tensor] : {std::pair{&groups, &ring.rank_indices},
                                       {&part_rows, &inner.part_rows},
                                       {&whole_rows, &inner.whole_rows},
                                       {&starts, &inner.all_segment_starts}})
    if (tensor->defined()) copy_from(*tensor, std::span<const int32_t>(*values), runtime_.stream());
}

const nn::Batch& DeviceBatch::fill(const HostBatch& host, const models::Model& model,
                                   settings::LossScope scope, double loss_scale,
                                   std::span<const double> of_sequences) {
  check_range(host.tokens, model->vocab_size(), "token id",
              "the vocabulary (--vocab-size, or the tokenizer of the data)");
  check_range(host.positions, model->max_position_embeddings(), "position",
              "--max-position-embeddings");
  if (!host.segment_starts.empty()) check_segments(host);
  allocate(host, model->facts());
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
  if (batch_.context_tokens.all_segment_starts.defined()) {
    copy_from(batch_.context_tokens.all_segment_starts,
              std::span<const int32_t>(host.whole().segment_starts), stream);
    fill_indices(host);
  }
  copy_from(batch_.sample_ids, std::span<const int64_t>(host.sample_ids), stream);
  if (batch_.real.rows.defined()) fill_real_tokens(host);
  if (batch_.source_weights.defined()) fill_source_weights(host);
  const double divisor =
      scope == settings::LossScope::token ? 1 : std::max(host.whole().counted(), 1.0);
  weights_.resize(host.loss_mask.size());
  const auto held = static_cast<size_t>(host.layout.held());
  for (size_t i = 0; i < weights_.size(); ++i)
    weights_[i] = host.loss_mask[i] / divisor * loss_scale *
                  (of_sequences.empty() ? 1 : of_sequences[i / held]);
  copy_from(batch_.loss_weights, std::span<const double>(weights_), stream);
  fill_predicted(host, model->facts().prediction, loss_scale / divisor);
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
