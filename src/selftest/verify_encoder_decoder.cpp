#include "selftest/verify_encoder_decoder.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::selftest {
namespace {

constexpr int64_t kNotCounted = -100;  // no label, in transformers

std::vector<int32_t> read_tokens(Expected& expected, const std::string& name,
                                 const models::Model& model) {
  std::vector<int32_t> tokens;
  for (const int64_t id : expected.integers(name)) {
    MG_CHECK(id >= 0 && id < model->vocab_size(), "{} contains {}, outside the vocabulary [0, {})",
             name, id, model->vocab_size());
    tokens.push_back(static_cast<int32_t>(id));
  }
  return tokens;
}

corpus::HostBatch read_texts(Expected& expected, const std::string& name,
                             const models::Model& model) {
  const Shape shape = expected.shape(name);
  MG_CHECK(shape.rank() == 2 && shape.elements() > 0,
           "{} has shape {}; it must be [sequences, tokens]", name, shape.str());
  corpus::HostBatch texts{.layout = {.sequences = shape[0], .length = shape[1]}};
  texts.tokens = read_tokens(expected, name, model);
  for (int64_t i = 0; i < shape.elements(); ++i)
    texts.positions.push_back(static_cast<int32_t>(i % shape[1]));
  texts.sample_ids.assign(static_cast<size_t>(shape[0]), 0);
  return texts;
}

// Hides the encoder's padding from both; batch.encoder_padding has been read.
void hide_padding(corpus::HostBatch& texts, ExpectedBatch& batch) {
  const auto length = static_cast<size_t>(texts.layout.length),
             target = static_cast<size_t>(batch.host.layout.length);
  texts.segment_starts.assign(texts.tokens.size(), 0);
  for (size_t row = 0; row < texts.tokens.size(); row += length) {
    const auto begin = batch.encoder_padding.begin() + static_cast<std::ptrdiff_t>(row);
    const auto shown = std::find(begin, begin + static_cast<std::ptrdiff_t>(length), true) - begin;
    MG_CHECK(shown > 0, "attention_mask hides all tokens of a sequence");
    const auto last = static_cast<int32_t>(shown) - 1;
    texts.segment_ends.insert(texts.segment_ends.end(), length, last);
    batch.host.encoder_ends.insert(batch.host.encoder_ends.end(), target, last);
  }
}

}  // namespace

ExpectedBatch read_encoder_decoder_batch(Expected& expected, const models::Model& model) {
  ExpectedBatch batch{.host = read_texts(expected, "decoder_input_ids", model)};
  corpus::HostBatch& host = batch.host;
  corpus::HostBatch texts = read_texts(expected, "input_ids", model);
  MG_CHECK(texts.layout.sequences == host.layout.sequences,
           "input_ids has {} sequences and decoder_input_ids {}", texts.layout.sequences,
           host.layout.sequences);
  const Shape shape{host.layout.sequences, host.layout.length};
  MG_CHECK(expected.shape("labels") == shape, "labels has shape {} but decoder_input_ids {}",
           expected.shape("labels").str(), shape.str());
  for (const int64_t label : expected.integers("labels")) {
    MG_CHECK(label == kNotCounted || (label >= 0 && label < model->vocab_size()),
             "labels contains {}, outside the vocabulary [0, {})", label, model->vocab_size());
    host.labels.push_back(static_cast<int32_t>(label == kNotCounted ? 0 : label));
    host.loss_mask.push_back(label == kNotCounted ? 0.0f : 1.0f);
  }
  batch.encoder_padding = read_padding(expected, texts);
  if (!batch.encoder_padding.empty()) hide_padding(texts, batch);
  host.encoder = std::make_shared<const corpus::HostBatch>(std::move(texts));
  return batch;
}

std::optional<corpus::HostBatch> read_encoder_decoder_greedy(Expected& expected,
                                                             const corpus::HostBatch& batch,
                                                             const models::Model& model) {
  if (!expected.contains("greedy")) return std::nullopt;
  corpus::HostBatch greedy = corpus::sequence_of(batch, 0);
  const int32_t start = greedy.tokens.at(0);
  greedy.tokens = read_tokens(expected, "greedy", model);
  greedy.tokens.insert(greedy.tokens.begin(), start);
  const size_t count = greedy.tokens.size();
  greedy.layout.length = static_cast<int64_t>(count);
  greedy.positions.clear();
  for (size_t i = 0; i < count; ++i) greedy.positions.push_back(static_cast<int32_t>(i));
  greedy.labels.assign(count, 0);
  greedy.loss_mask.assign(count, 0.0f);
  if (!greedy.encoder_ends.empty()) greedy.encoder_ends.assign(count, greedy.encoder_ends[0]);
  return greedy;
}

}  // namespace megatron::selftest
