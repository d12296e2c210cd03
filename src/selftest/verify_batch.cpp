#include "selftest/verify_batch.h"

#include <algorithm>

#include "base/divide.h"
#include "base/error.h"
#include "selftest/verify_encoder.h"

namespace megatron::selftest {
namespace {

int32_t token_of(int64_t id, const models::Model& model, std::string_view tensor) {
  MG_CHECK(id >= 0 && id < model->vocab_size(), "{} contains {}, outside the vocabulary [0, {})",
           tensor, id, model->vocab_size());
  return static_cast<int32_t>(id);
}

// Labels of tokens, shifted: the label of position t is labels[t + 1].
void read_token_labels(Expected& expected, const models::Model& model, corpus::HostBatch& batch) {
  const Shape shape = {batch.layout.sequences, batch.layout.length};
  MG_CHECK(expected.shape("labels") == shape, "labels has shape {} but input_ids {}",
           expected.shape("labels").str(), shape.str());
  const std::vector<int64_t> labels = expected.integers("labels");
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const bool last = i % batch.layout.length + 1 == batch.layout.length;
    const int64_t label = last ? -100 : labels[static_cast<size_t>(i) + 1];
    batch.labels.push_back(label == -100 ? -100 : token_of(label, model, "labels"));
    batch.loss_mask.push_back(label == -100 ? 0.0f : 1.0f);
  }
}

// The last token of each sequence that is not the model's padding.
std::vector<int64_t> find_score_rows(const corpus::HostBatch& batch, int64_t padding) {
  std::vector<int64_t> rows;
  for (int64_t b = 0; b < batch.layout.sequences; ++b) {
    const int64_t begin = b * batch.layout.length;
    int64_t at = batch.layout.length - 1;
    while (at > 0 && batch.tokens[static_cast<size_t>(begin + at)] == padding) --at;
    rows.push_back(begin + at);
  }
  return rows;
}

// Reads the labels of each sequence, of which any number may apply.
void read_label_sets(Expected& expected, const models::Model& model, ExpectedBatch& batch) {
  corpus::HostBatch& host = batch.host;
  const Shape shape = {host.layout.sequences, model->score_labels()};
  MG_CHECK(expected.shape("labels") == shape,
           "labels has shape {}; for a model that gives a text several labels it must be {}",
           expected.shape("labels").str(), shape.str());
  host.label_sets.assign(host.tokens.size(), {});
  const std::vector<double> labels = expected.doubles("labels");
  for (size_t i = 0; i < labels.size(); ++i) {
    MG_CHECK(labels[i] == 0 || labels[i] == 1,
             "labels contains {}; each of a text's labels is 1 if it applies, else 0", labels[i]);
    const auto width = static_cast<size_t>(shape[1]);
    const auto row = static_cast<size_t>(batch.score_rows[i / width]);
    host.loss_mask[row] = 1;
    if (labels[i] == 1) host.label_sets[row].push_back(static_cast<int32_t>(i % width));
  }
}

// Reads the labels of each sequence: one, or with multi_label_classification any number.
void read_score_labels(Expected& expected, const models::Model& model, ExpectedBatch& batch) {
  corpus::HostBatch& host = batch.host;
  if (batch.score_rows.empty())
    batch.score_rows = find_score_rows(host, model->facts().score_padding);
  host.labels.assign(host.tokens.size(), 0);
  host.loss_mask.assign(host.tokens.size(), 0);
  if (model->facts().multi_label) return read_label_sets(expected, model, batch);
  MG_CHECK(expected.shape("labels") == Shape({host.layout.sequences}),
           "labels has shape {}; for a classification model it must be [{}]",
           expected.shape("labels").str(), host.layout.sequences);
  const bool numbers = model->score_labels() == 1;
  if (numbers) host.targets.assign(host.tokens.size(), 0);
  const std::vector<double> labels = expected.doubles("labels");
  for (size_t b = 0; b < labels.size(); ++b) {
    const auto row = static_cast<size_t>(batch.score_rows[b]);
    host.loss_mask[row] = 1;
    if (numbers) {
      host.targets[row] = labels[b];
    } else {
      MG_CHECK(labels[b] >= 0 && labels[b] < static_cast<double>(model->score_labels()),
               "labels contains {}; the model has {} classes", labels[b], model->score_labels());
      host.labels[row] = static_cast<int32_t>(labels[b]);
    }
  }
}

}  // namespace

std::vector<bool> read_padding(Expected& expected, const corpus::HostBatch& batch) {
  std::vector<bool> padding;
  if (!expected.contains("attention_mask")) return padding;
  const Shape shape = {batch.layout.sequences, batch.layout.length};
  MG_CHECK(expected.shape("attention_mask") == shape,
           "attention_mask has shape {} but input_ids {}", expected.shape("attention_mask").str(),
           shape.str());
  const std::vector<int64_t> mask = expected.integers("attention_mask");
  for (size_t i = 0; i < mask.size(); ++i) {
    const bool begins = i % static_cast<size_t>(batch.layout.length) == 0;
    MG_CHECK(mask[i] == 0 || begins || !padding.back(),
             "attention_mask masks tokens that are followed by unmasked ones; only padding at "
             "the end is supported");
    padding.push_back(mask[i] == 0);
  }
  return padding;
}

namespace {

// The given sequences of a batch, with their texts for the encoder if it has any.
corpus::HostBatch chosen(const corpus::HostBatch& from, std::span<const int64_t> numbers) {
  const auto part = [&](const auto& all) {
    std::decay_t<decltype(all)> rows;
    const int64_t size = std::ssize(all) / from.layout.sequences;
    for (const int64_t i : numbers)
      rows.insert(rows.end(), all.begin() + i * size, all.begin() + (i + 1) * size);
    return rows;
  };
  corpus::HostBatch batch{
      .layout = {.sequences = std::ssize(numbers), .length = from.layout.length},
      .tokens = part(from.tokens),
      .positions = part(from.positions),
      .labels = part(from.labels),
      .token_types = part(from.token_types),
      .targets = part(from.targets),
      .loss_mask = part(from.loss_mask),
      .sample_ids = part(from.sample_ids),
      .segment_starts = part(from.segment_starts),
      .pair_labels = part(from.pair_labels),
      .label_sets = part(from.label_sets),
      .segment_ends = part(from.segment_ends),
      .encoder_starts = part(from.encoder_starts),
      .encoder_ends = part(from.encoder_ends),
      .sources = part(from.sources)};
  if (from.encoder != nullptr)
    batch.encoder = std::make_shared<const corpus::HostBatch>(chosen(*from.encoder, numbers));
  return batch;
}

}  // namespace

corpus::HostBatch ExpectedBatch::share(int rank, int ranks) const {
  const int64_t count = ceil_div(host.layout.sequences, ranks);
  std::vector<int64_t> numbers;
  for (int64_t i = rank * count; i < (rank + 1) * count; ++i)
    numbers.push_back(i < host.layout.sequences ? i : 0);
  corpus::HostBatch batch = chosen(host, numbers);
  for (int64_t i = 0; i < count; ++i)
    if (rank * count + i >= host.layout.sequences) {
      const int64_t begin = i * host.layout.length;
      std::fill_n(batch.loss_mask.begin() + begin, host.layout.length, 0);
      if (!batch.pair_labels.empty())
        std::fill_n(batch.pair_labels.begin() + begin, host.layout.length, -1);
    }
  return batch;
}

ExpectedBatch read_expected_batch(Expected& expected, const models::Model& model) {
  const Shape shape = expected.shape("input_ids");
  MG_CHECK(shape.rank() == 2 && shape.elements() > 0,
           "input_ids has shape {}; it must be [sequences, tokens]", shape.str());
  const int64_t length = shape[1];
  MG_CHECK(length <= model->max_position_embeddings(),
           "input_ids has {} tokens per sequence, but the model has only {} positions", length,
           model->max_position_embeddings());
  ExpectedBatch batch{.host = {.layout = {.sequences = shape[0], .length = length}}};
  corpus::HostBatch& host = batch.host;
  for (const int64_t id : expected.integers("input_ids")) {
    host.positions.push_back(static_cast<int32_t>(std::ssize(host.tokens) % length));
    host.tokens.push_back(token_of(id, model, "input_ids"));
  }
  host.sample_ids.assign(static_cast<size_t>(shape[0]), 0);
  batch.padding = read_padding(expected, host);
  if (model->facts().two_sided) {
    read_encoder_inputs(expected, model, batch);
    read_encoder_labels(expected, model, batch);
    if (!batch.score_rows.empty()) read_score_labels(expected, model, batch);
  } else if (model->score_labels() > 0) {
    read_score_labels(expected, model, batch);
  } else {
    read_token_labels(expected, model, host);
  }
  return batch;
}

std::optional<corpus::HostBatch> read_greedy_batch(Expected& expected,
                                                   const corpus::HostBatch& batch,
                                                   const models::Model& model) {
  if (!expected.contains("greedy")) return std::nullopt;
  const std::vector<int64_t> wanted = expected.integers("greedy");
  const int64_t total = kGreedyPrompt + std::ssize(wanted);
  MG_CHECK(batch.layout.length >= kGreedyPrompt,
           "input_ids has {} tokens per sequence; greedy tokens follow the first {}",
           batch.layout.length, kGreedyPrompt);
  MG_CHECK(total <= model->max_position_embeddings(),
           "{} tokens, including the greedy ones, exceed the model's {} positions", total,
           model->max_position_embeddings());
  corpus::HostBatch greedy{.layout = {.sequences = 1, .length = total}, .sample_ids = {0}};
  greedy.tokens.assign(batch.tokens.begin(), batch.tokens.begin() + kGreedyPrompt);
  for (const int64_t token : wanted) greedy.tokens.push_back(token_of(token, model, "greedy"));
  for (int64_t i = 0; i < total; ++i) greedy.positions.push_back(static_cast<int32_t>(i));
  greedy.labels.assign(greedy.tokens.size(), 0);
  greedy.loss_mask.assign(greedy.tokens.size(), 0.0f);
  return greedy;
}

}  // namespace megatron::selftest
