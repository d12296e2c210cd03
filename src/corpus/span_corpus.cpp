#include "corpus/span_corpus.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"

namespace megatron::corpus {
namespace {

constexpr int64_t kChecked = 256;  // samples that are made before the first step, to find errors

// Synthetic samples: random tokens, of which spans are masked while the decoder has room for them.
class MockSpans final : public data::T5Examples {
 public:
  static constexpr int64_t kPad = 0, kEnd = 1, kFirst = 2, kFewest = 16;

  MockSpans(const ExampleFiles& files, data::Split set, int64_t samples)
      : length_(files.seq_length),
        decoder_length_(files.decoder_length),
        sentinels_(std::min<int64_t>(100, files.vocabulary.size / 4)),
        ordinary_(files.vocabulary.size - sentinels_ - kFirst),
        masked_(files.settings.mask_prob),
        random_(static_cast<uint64_t>(files.seed),
                fmt::format("mock spans {}", static_cast<int>(set))),
        samples_(samples) {
    MG_CHECK(files.vocabulary.size >= kFewest,
             "--mock-data with --task span-corruption needs at least {} tokens, of which the first "
             "are padding and the end, and the last are sentinels; --vocab-size is {}",
             kFewest, files.vocabulary.size);
    data::check_masking({.probability = masked_});
    MG_CHECK(length_ >= 4, "--seq-length is {}; --task span-corruption needs at least 4 tokens",
             length_);
    MG_CHECK(decoder_length_ >= kSpan + 2,
             "--decoder-seq-length is {}; --task span-corruption needs at least {} tokens",
             decoder_length_, kSpan + 2);
  }
  int64_t size() const override { return samples_; }
  void read(int64_t k, data::T5Example& example) const override {
    example = {};
    const auto at = [&](int64_t t) { return static_cast<uint64_t>(2 * (k * length_ + t)); };
    const double begins = masked_ / static_cast<double>(kSpan);
    int64_t spans = 0;
    for (int64_t t = 0; t < length_ - 2; ++t) {
      const bool fits = spans < sentinels_ && t + kSpan < length_ - 2 &&
                        std::ssize(example.labels) + kSpan + 2 <= decoder_length_;
      const bool first = spans == 0 && t + kSpan + 1 >= length_ - 2;  // at least one if it fits
      if (!fits || !(first || random_.uniform(at(t) + 1) < begins)) {
        example.encoder_tokens.push_back(token(at(t)));
        continue;
      }
      const int64_t sentinel = kFirst + ordinary_ + spans++;
      example.encoder_tokens.push_back(sentinel);
      example.labels.push_back(sentinel);
      for (int64_t i = 0; i < kSpan; ++i) example.labels.push_back(token(at(t + i)));
      t += kSpan - 1;
    }
    example.decoder_tokens.assign(1, kPad);
    example.decoder_tokens.insert(example.decoder_tokens.end(), example.labels.begin(),
                                  example.labels.end());
    example.labels.push_back(kEnd);
    example.loss_mask.assign(example.labels.size(), 1);
  }

 private:
  static constexpr int64_t kSpan = 3;
  int64_t token(uint64_t at) const {
    return kFirst + static_cast<int64_t>(random_.bits(at) % static_cast<uint64_t>(ordinary_));
  }

  int64_t length_, decoder_length_, sentinels_, ordinary_;
  double masked_;
  RandomStream random_;
  int64_t samples_;
};

// Writes a text of these tokens, and padding after it.
void place_text(const std::vector<int64_t>& text, int64_t length, int64_t pad,
                std::vector<int64_t>& tokens, std::vector<int64_t>& positions,
                std::vector<int32_t>& segment_begin) {
  const auto size = std::ssize(text);
  MG_ASSERT(size > 0 && size <= length);
  tokens = text;
  tokens.resize(static_cast<size_t>(length), pad);
  positions.assign(tokens.size(), 0);
  std::iota(positions.begin(), positions.begin() + size, int64_t{0});
  segment_begin.assign(tokens.size(), 0);
  std::iota(segment_begin.begin() + size, segment_begin.end(), static_cast<int32_t>(size));
}

}  // namespace

void SpanRows::read(int64_t k, data::Sample& sample) const {
  data::T5Example example;
  examples_->read(k, example);
  place_text(example.encoder_tokens, lengths_.encoder, pad_, sample.encoder.tokens,
             sample.encoder.position_ids, sample.encoder.segment_begin);
  place_text(example.decoder_tokens, lengths_.tokens, pad_, sample.tokens, sample.position_ids,
             sample.segment_begin);
  const size_t length = sample.tokens.size(), tokens = example.decoder_tokens.size();
  sample.labels = std::move(example.labels);
  sample.labels.resize(length, 0);
  sample.loss_mask = std::move(example.loss_mask);
  sample.loss_mask.resize(length, 0);
  sample.sources.assign(length, -1);
  std::fill_n(sample.sources.begin(), tokens, 0);
  sample.encoder_begin.assign(length, 0);
  sample.encoder_end.assign(length, 0);
  std::fill_n(sample.encoder_end.begin(), tokens,
              static_cast<int32_t>(example.encoder_tokens.size() - 1));
}

void SpanRows::read_filler(data::Sample& sample) const {
  read(0, sample);
  std::ranges::fill(sample.loss_mask, 0.0f);
}

namespace {

void warn_of_few_sentinels(int64_t sentinels, const data::T5DatasetConfig& config) {
  const auto most = static_cast<int64_t>(
      std::ceil(config.masking.probability * static_cast<double>(config.sequence_length)));
  if (sentinels < most)
    log::warning(
        "a sample of {} tokens can have up to {} masked spans (--mask-prob {}), and the vocabulary "
        "has {} sentinels: a sample with more spans than that, which is rare, would end the run. "
        "--vocab-extra-ids adds more",
        config.sequence_length, most, config.masking.probability, sentinels);
}

}  // namespace

Corpus open_spans(const ExampleFiles& files) {
  const settings::DataSettings& s = files.settings;
  const models::TextLength lengths(files.decoder_length, files.seq_length);
  const auto open = [&](const SentenceSet& set) {
    const data::T5Tokens tokens = data::t5_tokens(*files.vocabulary.tokenizer, files.start_token);
    data::T5DatasetConfig config{.sequence_length = files.seq_length,
                                 .decoder_length = files.decoder_length,
                                 .seed = files.seed,
                                 .split = set.shares,
                                 .short_sequence_probability = s.short_seq_prob,
                                 .allow_ambiguous_pad_tokens = s.allow_ambiguous_pad_tokens,
                                 .megatron_data_order = s.megatron_data_order};
    config.masking.probability = s.mask_prob;
    warn_of_few_sentinels(std::ssize(tokens.sentinels), config);
    auto examples = data::build_t5_examples(set.list, tokens, config, set.split, set.ordered,
                                            s.mid_level_dataset_surplus, set.samples);
    data::T5Example example;
    for (int64_t k = 0; k < std::min(examples->size(), kChecked); ++k) examples->read(k, example);
    return std::make_shared<const SpanRows>(std::move(examples), lengths, tokens.roles.pad);
  };
  const auto mock = [&](data::Split split, int64_t samples) {
    return std::make_shared<const SpanRows>(
        std::make_shared<const MockSpans>(files, split, samples), lengths, MockSpans::kPad);
  };
  return open_sentences(files, {.name = "span-corruption", .mock = mock, .open = open});
}

}  // namespace megatron::corpus
