#include "corpus/batch.h"

#include <algorithm>
#include <numeric>

#include "base/divide.h"
#include "base/error.h"
#include "corpus/context_batch.h"
#include "corpus/embedding_factors.h"
#include "corpus/predicted_tokens.h"
#include "kernels/table.h"

namespace megatron::corpus {

double HostBatch::counted() const {
  double sum = 0;
  for (const float m : loss_mask) sum += m;
  return sum;
}

void set_segment_ends(HostBatch& batch) {
  MG_ASSERT(batch.cut_from == nullptr);
  const auto length = static_cast<size_t>(batch.layout.length);
  const std::vector<int32_t>& starts = batch.segment_starts;
  MG_ASSERT(starts.empty() || starts.size() == static_cast<size_t>(batch.layout.rows()));
  batch.segment_ends.resize(static_cast<size_t>(batch.layout.rows()));
  for (size_t i = batch.segment_ends.size(); i-- > 0;) {
    const size_t t = i % length;
    const auto next = static_cast<int32_t>(t + 1);
    const bool last = t + 1 == length || (!starts.empty() && starts[i + 1] == next);
    batch.segment_ends[i] = last ? next - 1 : batch.segment_ends[i + 1];
  }
}

namespace {

// Replaces the texts of the encoder by what `change` makes of a copy.
template <class F>
void change_encoder(HostBatch& batch, F&& change) {
  if (batch.encoder == nullptr) return;
  auto changed = std::make_shared<HostBatch>(*batch.encoder);
  change(*changed);
  batch.encoder = std::move(changed);
}

}  // namespace

void pad_sequences(HostBatch& batch, int64_t multiple) {
  if (batch.encoder != nullptr && batch.encoder->layout.length % multiple != 0) {
    const auto last = static_cast<int32_t>(batch.encoder->layout.length - 1);
    change_encoder(batch, [&](HostBatch& encoder) { pad_sequences(encoder, multiple); });
    if (batch.encoder_ends.empty()) batch.encoder_ends.assign(batch.tokens.size(), last);
  }
  const int64_t length = batch.layout.length, padded = ceil_div(length, multiple) * multiple;
  if (padded == length) return;
  if (batch.segment_ends.empty()) set_segment_ends(batch);
  const auto pad = [&]<class T>(std::vector<T>& values, T fill = {}) {
    if (values.empty()) return;
    std::vector<T> all(static_cast<size_t>(batch.layout.sequences * padded), fill);
    for (int64_t s = 0; s < batch.layout.sequences; ++s)
      std::copy_n(values.begin() + s * length, length, all.begin() + s * padded);
    values = std::move(all);
  };
  for (auto* values : {&batch.tokens, &batch.positions, &batch.labels, &batch.segment_starts,
                       &batch.token_types, &batch.encoder_starts, &batch.encoder_ends})
    pad(*values);
  pad(batch.segment_ends, static_cast<int32_t>(padded - 1));
  pad(batch.sources, -1);
  pad(batch.pair_labels, -1);
  pad(batch.label_sets);
  pad(batch.targets);
  pad(batch.reference);
  pad(batch.loss_mask);
  batch.layout.length = padded;
  batch.text_length = length;
}

HostBatch sequence_of(const HostBatch& batch, int64_t sequence) {
  HostBatch one{.layout = {.sequences = 1, .length = batch.layout.length}};
  one.text_length = batch.text_length;
  if (batch.encoder != nullptr)
    one.encoder = std::make_shared<HostBatch>(sequence_of(*batch.encoder, sequence));
  const auto take = [&](const auto& from, auto& to, int64_t length) {
    const auto begin = from.begin() + (from.empty() ? 0 : sequence * length);
    to.assign(begin, begin + (from.empty() ? 0 : length));
  };
  for (const auto member :
       {&HostBatch::tokens, &HostBatch::positions, &HostBatch::labels, &HostBatch::segment_starts,
        &HostBatch::segment_ends, &HostBatch::sources, &HostBatch::token_types,
        &HostBatch::pair_labels, &HostBatch::encoder_starts, &HostBatch::encoder_ends})
    take(batch.*member, one.*member, batch.layout.length);
  take(batch.label_sets, one.label_sets, batch.layout.length);
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
  batch.layout.by_document = layout.by_document;
  batch.rank_indices.clear();
  batch.cut_from.reset();
  if (layout.ranks == 1) return;
  auto whole = std::make_shared<HostBatch>(batch);
  whole->layout = {.sequences = batch.layout.sequences, .length = batch.layout.length};
  batch.cut_from = std::move(whole);
  change_encoder(batch, [&](HostBatch& encoder) {
    parallel::TokenLayout own = layout;
    own.length = encoder.layout.length;
    keep_tokens(encoder, own);
  });
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
  for (auto* values : {&batch.tokens, &batch.labels, &batch.positions, &batch.segment_starts,
                       &batch.segment_ends, &batch.sources, &batch.token_types, &batch.pair_labels,
                       &batch.encoder_starts, &batch.encoder_ends})
    keep(*values);
  keep(batch.label_sets);
  keep(batch.targets);
  keep(batch.reference);
  keep(batch.loss_mask);
}

namespace {

void check_range(const std::vector<int32_t>& values, int64_t end, std::string_view what,
                 std::string_view limit, int64_t begin = 0) {
  for (const int32_t v : values) {
    MG_CHECK(v >= begin && v < end, "{} {} is outside [{}, {}): the data does not match {}", what,
             v, begin, end, limit);
  }
}

void check_segments(const HostBatch& host) {
  for (const auto& [values, what] :
       {std::pair{&host.segment_starts, "starts"}, {&host.segment_ends, "ends"}})
    MG_CHECK(values->empty() || values->size() == host.tokens.size(),
             "a batch has {} segment {} and {} tokens: it needs one per token, or none",
             values->size(), what, host.tokens.size());
  const std::span<const int32_t> indices = host.indices();
  const int64_t length = host.layout.length;
  for (size_t i = 0; i < host.tokens.size(); ++i) {
    const int64_t at = indices.empty() ? static_cast<int64_t>(i) % length : indices[i];
    const int64_t begin = host.segment_starts.empty() ? 0 : host.segment_starts[i],
                  end = host.segment_ends.empty() ? length - 1 : host.segment_ends[i];
    MG_CHECK(begin >= 0 && begin <= at,
             "the segment of token {} of a sequence starts at {}; the start must lie in [0, {}]",
             at, begin, at);
    // A segment may end before its token: hidden tokens see a text that does not see them.
    MG_CHECK(end >= begin && end < length,
             "the segment of token {} of a sequence ends at {}; the end must lie in [{}, {}]", at,
             end, begin, length - 1);
  }
}

// Two-sided attention would see the documents after a token's own.
void check_two_sided(const HostBatch& host, bool two_sided, std::string_view family) {
  MG_CHECK(!two_sided || host.segment_starts.empty() || !host.segment_ends.empty(),
           "a batch has segment starts and no segment ends, but the attention of {} sees later "
           "tokens, too: set both",
           family);
}

void check_encoder_bounds(const HostBatch& host) {
  const int64_t length = host.encoder->layout.length;
  for (const auto& [values, what] :
       {std::pair{&host.encoder_starts, "first"}, {&host.encoder_ends, "last"}}) {
    MG_CHECK(values->empty() || values->size() == host.tokens.size(),
             "a batch has {} {} tokens of the encoder's texts and {} tokens: it needs one per "
             "token, or none",
             values->size(), what, host.tokens.size());
    for (const int32_t value : *values)
      MG_CHECK(value >= 0 && value < length,
               "the {} token of the encoder's text that a token sees is {}; it must lie in [0, {}]",
               what, value, length - 1);
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
  const bool confined = !host.segment_starts.empty(), ended = !host.segment_ends.empty(),
             numbers = !host.targets.empty(), pads = model.experts && !host.sources.empty(),
             by_source = sources_ > 0 && !host.sources.empty(),
             has_loss = !host.loss_mask.empty(),  // not: the texts of an encoder
      begins = !host.encoder_starts.empty(), ends = !host.encoder_ends.empty();
  if (batch_.tokens.defined() && batch_.layout == host.layout &&
      batch_.context == host.text_length && batch_.segment_starts.defined() == confined &&
      batch_.segment_ends.defined() == ended && batch_.targets.defined() == numbers &&
      batch_.real.rows.defined() == pads && batch_.source_weights.defined() == by_source &&
      batch_.labels.defined() == has_loss && batch_.encoder_starts.defined() == begins &&
      batch_.encoder_ends.defined() == ends)
    return;
  const auto tensor = [&](int64_t size, DType type, const char* label) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), {size}, type, label);
  };
  const DType wide = kernels::accumulator(type_);
  batch_ = {.layout = host.layout, .context = host.text_length};
  batch_.context_tokens.layout = host.layout;
  batch_.tokens = tensor(tokens, DType::i32, "batch.tokens");
  batch_.positions = tensor(tokens, DType::i32, "batch.positions");
  if (has_loss) {
    batch_.labels = tensor(tokens, DType::i32, "batch.labels");
    batch_.loss_weights = tensor(tokens, wide, "batch.loss_weights");
  }
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
  if (ended) batch_.segment_ends = tensor(tokens, DType::i32, "batch.segment_ends");
  if (begins) batch_.encoder_starts = tensor(tokens, DType::i32, "batch.encoder_starts");
  if (ends) batch_.encoder_ends = tensor(tokens, DType::i32, "batch.encoder_ends");
  if (host.layout.ranks > 1)
    allocate_context(runtime_, host,
                     recorded_ ? std::span<const parallel::AttentionReach>() : model.reaches,
                     batch_.context_tokens);
  if (model.token_types > 0) batch_.token_types = tensor(tokens, DType::i32, "batch.token_types");
  if (model.left_out_token >= 0)
    batch_.embedding_factors = tensor(tokens, wide, "batch.embedding_factors");
  if (numbers) batch_.targets = tensor(tokens, wide, "batch.targets");
  for (int64_t depth = 0; has_loss && depth < model.prediction.depths; ++depth)
    batch_.predicted.push_back({tensor(tokens, DType::i32, "batch.predicted_tokens"),
                                tensor(tokens, DType::i32, "batch.predicted_labels"),
                                tensor(tokens, wide, "batch.predicted_weights"),
                                tensor(tokens, wide, "batch.predicted_counts")});
}

// What the embedding reads besides the tokens.
void DeviceBatch::fill_embedding(const HostBatch& host, const models::ModelFacts& model) {
  if (model.position_offset == 0) {
    copy_from(batch_.positions, std::span<const int32_t>(host.positions), runtime_.stream());
  } else {
    std::vector<int32_t> rows = host.positions;  // of the table of positions
    for (int32_t& row : rows) row += static_cast<int32_t>(model.position_offset);
    copy_from(batch_.positions, std::span<const int32_t>(rows), runtime_.stream());
  }
  if (batch_.token_types.defined()) {
    const std::vector<int32_t> first(host.token_types.empty() ? host.tokens.size() : 0);
    copy_from(batch_.token_types,
              std::span<const int32_t>(first.empty() ? host.token_types : first),
              runtime_.stream());
  }
  if (batch_.embedding_factors.defined())
    copy_from(batch_.embedding_factors,
              std::span<const double>(embedding_factors(host, model.left_out_token)),
              runtime_.stream());
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

void DeviceBatch::fill_segments(const HostBatch& host) {
  for (const auto& [values, tensor] : {std::pair{&host.segment_starts, &batch_.segment_starts},
                                       {&host.segment_ends, &batch_.segment_ends}})
    if (tensor->defined()) copy_from(*tensor, std::span<const int32_t>(*values), runtime_.stream());
  if (host.layout.ranks > 1) fill_context(runtime_, host, batch_.context_tokens);
}

void DeviceBatch::fill_inputs(const HostBatch& host, const models::Model& model) {
  check_range(host.tokens, model->vocab_size(), "token id",
              "the vocabulary (--vocab-size, or the tokenizer of the data)");
  check_range(host.positions, model->max_position_embeddings(), "position",
              "--max-position-embeddings", model->facts().position_offset > 0 ? -1 : 0);
  if (model->facts().token_types > 0)
    check_range(host.token_types, model->facts().token_types, "token type",
                "the model's types (type_vocab_size)");
  if (!host.segment_starts.empty() || !host.segment_ends.empty()) check_segments(host);
  allocate(host, model->facts());
  if (!runtime_.device().has_data()) return;
  Stream& stream = runtime_.stream();
  copy_from(batch_.tokens, std::span<const int32_t>(host.tokens), stream);
  fill_embedding(host, model->facts());
  fill_segments(host);
  copy_from(batch_.sample_ids, std::span<const int64_t>(host.sample_ids), stream);
  if (batch_.real.rows.defined()) fill_real_tokens(host);
}

void DeviceBatch::fill_encoder(const HostBatch& host, const models::Model& model) {
  const HostBatch* const texts = host.encoder.get();
  const bool reads = model->facts().encoder_layers > 0;
  MG_CHECK((texts != nullptr) == reads, "a batch has {} for an encoder, and {} has {}",
           texts == nullptr ? "no texts" : "texts", model->family(), reads ? "one" : "none");
  if (texts == nullptr) return;
  MG_CHECK(texts->layout.sequences == host.layout.sequences,
           "a batch has {} texts for an encoder and {} sequences: it needs one for each",
           texts->layout.sequences, host.layout.sequences);
  check_two_sided(*texts, true, model->family());
  check_encoder_bounds(host);
  if (encoder_ == nullptr) encoder_ = std::make_unique<DeviceBatch>(runtime_, type_);
  encoder_->fill_inputs(*texts, model);
  batch_.encoder = &encoder_->batch_;
  if (!runtime_.device().has_data()) return;
  for (const auto& [values, tensor] : {std::pair{&host.encoder_starts, &batch_.encoder_starts},
                                       {&host.encoder_ends, &batch_.encoder_ends}})
    if (tensor->defined()) copy_from(*tensor, std::span<const int32_t>(*values), runtime_.stream());
}

void DeviceBatch::fill_losses(const HostBatch& host, const models::Model& model,
                              settings::LossScope scope, double loss_scale,
                              std::span<const double> of_sequences) {
  check_labels(host, model);
  Stream& stream = runtime_.stream();
  copy_from(batch_.labels, std::span<const int32_t>(host.labels), stream);
  if (batch_.targets.defined())
    copy_from(batch_.targets, std::span<const double>(host.targets), stream);
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
}

const nn::Batch& DeviceBatch::fill(const HostBatch& host, const models::Model& model,
                                   settings::LossScope scope, double loss_scale,
                                   std::span<const double> of_sequences) {
  lists_pairs_ = model->facts().pair_head;
  check_two_sided(host, model->facts().two_sided, model->family());
  fill_inputs(host, model);
  fill_encoder(host, model);
  if (runtime_.device().has_data()) fill_losses(host, model, scope, loss_scale, of_sequences);
  return batch_;
}

parallel::LabelledTokens DeviceBatch::listed(parallel::LabelledTokens& memory,
                                             const std::vector<int32_t>& labels, int64_t tokens,
                                             const std::function<bool(size_t)>& counts) {
  if (!memory.rows.defined() || memory.rows.size(0) != tokens) {
    Arena& arena = runtime_.arena(MemoryClass::activations);
    memory = {Tensor::empty(arena, {tokens}, DType::i32, "batch.labelled_rows"),
              Tensor::empty(arena, {tokens}, DType::i32, "batch.labelled")};
  }
  if (!runtime_.device().has_data()) return memory;
  std::vector<int32_t> rows, of_rows;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (!counts(i)) continue;
    rows.push_back(static_cast<int32_t>(i));
    of_rows.push_back(labels[i]);
  }
  const auto count = static_cast<int64_t>(rows.size());
  parallel::LabelledTokens tokens_listed{memory.rows.slice(0, 0, count),
                                         memory.labels.slice(0, 0, count)};
  copy_from(tokens_listed.rows, std::span<const int32_t>(rows), runtime_.stream());
  copy_from(tokens_listed.labels, std::span<const int32_t>(of_rows), runtime_.stream());
  return tokens_listed;
}

void DeviceBatch::list_labelled(const HostBatch& host, bool squares) {
  const int64_t tokens = host.layout.rows();
  batch_.labelled =
      listed(labelled_, host.labels, tokens, [&](size_t i) { return host.loss_mask[i] != 0; });
  batch_.labelled.squares = squares;
  if (lists_pairs_)
    batch_.pairs = listed(pairs_, host.pair_labels, tokens,
                          [&](size_t i) { return host.pair_labels[i] >= 0; });
}

}  // namespace megatron::corpus
