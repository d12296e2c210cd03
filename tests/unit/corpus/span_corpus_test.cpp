// Rows of masked spans, and batches of them with the texts of an encoder.
#include "corpus/span_corpus.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"

namespace megatron::corpus {
namespace {

using Indices = std::vector<int32_t>;
using Ids = std::vector<int64_t>;

// Example k has a text of 4 + k tokens, of which one is masked.
class ToyExamples final : public data::T5Examples {
 public:
  int64_t size() const override { return 3; }
  void read(int64_t k, data::T5Example& example) const override {
    example.encoder_tokens.resize(static_cast<size_t>(4 + k));
    std::iota(example.encoder_tokens.begin(), example.encoder_tokens.end(), 10 * (k + 1));
    example.encoder_tokens[1] = 99;
    example.decoder_tokens = {1, 99, 10 * (k + 1) + 1};
    example.labels = {99, 10 * (k + 1) + 1, 2};
    example.loss_mask = {1, 1, 1};
  }
};

SpanRows toy_rows() { return {std::make_shared<const ToyExamples>(), {4, 8}, 0}; }

TEST(SpanRows, HaveATextForTheEncoderBesideTheDecoders) {
  data::Sample sample;
  const SpanRows rows = toy_rows();
  rows.read(2, sample);  // what a longer sample left behind is written over
  rows.read(0, sample);
  EXPECT_EQ(sample.encoder.tokens, (Ids{10, 99, 12, 13, 0, 0, 0, 0}));
  EXPECT_EQ(sample.encoder.position_ids, (Ids{0, 1, 2, 3, 0, 0, 0, 0}));
  EXPECT_EQ(sample.encoder.segment_begin, (Indices{0, 0, 0, 0, 4, 5, 6, 7}));
  EXPECT_EQ(sample.tokens, (Ids{1, 99, 11, 0}));
  EXPECT_EQ(sample.labels, (Ids{99, 11, 2, 0}));
  EXPECT_EQ(sample.loss_mask, (std::vector<float>{1, 1, 1, 0}));
  EXPECT_EQ(sample.position_ids, (Ids{0, 1, 2, 0}));
  EXPECT_EQ(sample.segment_begin, (Indices{0, 0, 0, 3}));
  EXPECT_EQ(sample.encoder_begin, (Indices{0, 0, 0, 0}));
  EXPECT_EQ(sample.encoder_end, (Indices{3, 3, 3, 0}));
  rows.read_filler(sample);
  EXPECT_EQ(sample.loss_mask, (std::vector<float>{0, 0, 0, 0}));
}

TEST(SpanRows, BecomeBatchesOfTwoTexts) {
  const SpanRows rows = toy_rows();
  BatchReader reader(rows, {.length = 4});
  HostBatch batch;
  const Ids indices = {2, 0};
  reader.read(indices, batch);
  ASSERT_NE(batch.encoder, nullptr);
  const HostBatch& texts = *batch.encoder;
  EXPECT_EQ(batch.layout.length, 4);
  EXPECT_EQ(texts.layout.length, 8);
  EXPECT_EQ(texts.layout.sequences, 2);
  EXPECT_EQ(texts.sample_ids, indices);
  EXPECT_EQ(texts.tokens, (Indices{30, 99, 32, 33, 34, 35, 0, 0, 10, 99, 12, 13, 0, 0, 0, 0}));
  EXPECT_EQ(texts.segment_ends, (Indices{5, 5, 5, 5, 5, 5, 6, 7, 3, 3, 3, 3, 4, 5, 6, 7}));
  EXPECT_EQ(batch.encoder_ends, (Indices{5, 5, 5, 0, 3, 3, 3, 0}));
  EXPECT_TRUE(batch.segment_ends.empty());  // the decoder sees earlier tokens only
  const int32_t* const memory = texts.tokens.data();
  reader.read(Ids{1, 1}, batch);
  EXPECT_EQ(batch.encoder->tokens[0], 20);
  EXPECT_EQ(batch.encoder->tokens.data(), memory);
}

TEST(SpanRows, BatchesOfContextRanksHaveTheirTokensOfBothTexts) {
  const SpanRows rows = toy_rows();
  const Ids indices = {1, 2};
  HostBatch whole;
  BatchReader(rows, {.length = 4}).read(indices, whole);
  std::vector<int> seen(16), decoded(8);
  for (int rank = 0; rank < 2; ++rank) {
    HostBatch part;
    BatchReader(rows, {.length = 4, .rank = rank, .ranks = 2}).read(indices, part);
    ASSERT_EQ(part.encoder_rows(), 8);
    ASSERT_EQ(part.layout.rows(), 4);
    for (size_t i = 0; i < 8; ++i) {
      const size_t at = i / 4 * 8 + static_cast<size_t>(part.encoder->indices()[i]);
      EXPECT_EQ(part.encoder->tokens[i], whole.encoder->tokens[at]);
      ++seen[at];
    }
    for (size_t i = 0; i < 4; ++i) {
      const size_t at = i / 2 * 4 + static_cast<size_t>(part.indices()[i]);
      EXPECT_EQ(part.encoder_ends[i], whole.encoder_ends[at]);
      ++decoded[at];
    }
  }
  EXPECT_EQ(seen, std::vector<int>(16, 1));
  EXPECT_EQ(decoded, std::vector<int>(8, 1));
}

Corpus mock_spans(int64_t vocabulary, int64_t length, int64_t decoder_length) {
  settings::DataSettings settings;
  settings.task = "span-corruption";
  settings.mock_data = true;
  ThreadPool pool(1);
  const Vocabulary tokens{.size = vocabulary};
  return open_spans(
      {.settings = settings,
       .vocabulary = tokens,
       .seq_length = length,
       .seed = 7,
       .decoder_length = decoder_length,
       .wanted = {true, true, false},
       .samples = [](int64_t) { return std::array<std::optional<int64_t>, 3>{40, 5, 0}; },
       .pool = pool});
}

TEST(MockSpans, EverySpanStandsBehindItsSentinelOfTheText) {
  const Corpus corpus = mock_spans(64, 40, 24);
  const data::Dataset& train = corpus.set(data::Split::train);
  EXPECT_EQ(train.size(), 40);
  EXPECT_EQ(corpus.set(data::Split::valid).size(), 5);
  EXPECT_EQ(corpus.sets[2], nullptr);
  const auto is_sentinel = [](int64_t token) { return token >= 48; };
  double masked = 0, spans = 0;
  for (int64_t k = 0; k < train.size(); ++k) {
    data::Sample sample, again;
    train.read(k, sample);
    train.read(k, again);
    EXPECT_EQ(sample.encoder.tokens, again.encoder.tokens);
    Ids in_text, in_labels;
    for (const int64_t token : sample.encoder.tokens)
      if (is_sentinel(token)) in_text.push_back(token);
    for (size_t t = 0; t < sample.labels.size(); ++t) {
      if (sample.loss_mask[t] == 0) continue;
      if (is_sentinel(sample.labels[t])) in_labels.push_back(sample.labels[t]);
      masked += 1;
      if (t > 0) {
        EXPECT_EQ(sample.tokens[t], sample.labels[t - 1]);
      }
    }
    EXPECT_EQ(in_text, in_labels);
    EXPECT_FALSE(in_text.empty());
    spans += static_cast<double>(in_text.size());
  }
  EXPECT_NEAR((masked - spans - 40) / (40 * 38), 0.15, 0.05);
}

TEST(MockSpans, RefuseWhatIsTooSmall) {
  EXPECT_THROW(mock_spans(15, 40, 24), Error);
  EXPECT_THROW(mock_spans(64, 3, 24), Error);
  EXPECT_THROW(mock_spans(64, 40, 4), Error);
}

}  // namespace
}  // namespace megatron::corpus
