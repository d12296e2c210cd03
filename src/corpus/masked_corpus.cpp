#include "corpus/masked_corpus.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"
#include "corpus/sentence_corpus.h"

namespace megatron::corpus {
namespace {

// Synthetic samples: two texts of random tokens (without pairs: one), of which a share is masked.
class MockExamples final : public data::BertExamples {
 public:
  static constexpr int64_t kPad = 0, kCls = 1, kSep = 2, kMask = 3, kFirst = 4;

  MockExamples(const ExampleFiles& files, bool pairs, int64_t set, int64_t samples)
      : length_(files.seq_length),
        first_end_(pairs ? length_ / 2 : length_ - 1),
        vocabulary_(files.vocabulary.size),
        masked_(files.settings.mask_prob),
        seed_(static_cast<uint64_t>(files.seed)),
        set_(std::to_string(set)),
        samples_(samples) {
    MG_CHECK(vocabulary_ > kFirst,
             "--mock-data with --task mlm needs more than {} tokens, of which the first are [PAD], "
             "[CLS], [SEP] and [MASK]; --vocab-size is {}",
             kFirst, vocabulary_);
    MG_CHECK(length_ >= 5, "--seq-length is {}; --task mlm needs at least 5 tokens", length_);
    data::check_masking({.probability = masked_});
  }
  int64_t size() const override { return samples_; }
  void read(int64_t k, data::BertExample& example) const override {
    const RandomStream random(seed_, "mock sentences " + set_);
    const auto at = [&](int64_t t) { return static_cast<uint64_t>(k * 2 * (length_ + 1) + t); };
    example.is_random = random.uniform(at(2 * length_)) < 0.5;
    example.tokens.assign(static_cast<size_t>(length_), 0);
    example.token_types = example.tokens;
    example.labels.assign(example.tokens.size(), data::TokenMasker::kIgnored);
    for (int64_t t = 0; t < length_; ++t) {
      const auto i = static_cast<size_t>(t);
      const bool second = t > first_end_, ends = t == first_end_ || t + 1 == length_;
      example.token_types[i] = second ? 1 : 0;
      const int64_t token =
          kFirst +
          static_cast<int64_t>(random.bits(at(t)) % static_cast<uint64_t>(vocabulary_ - kFirst));
      example.tokens[i] = t == 0 ? kCls : ends ? kSep : token;
      if (t == 0 || ends || random.uniform(at(length_ + t)) >= masked_) continue;
      example.labels[i] = token;
      example.tokens[i] = kMask;
    }
  }

 private:
  int64_t length_;
  int64_t first_end_;  // position of the [SEP] after the first text
  int64_t vocabulary_;
  double masked_;
  uint64_t seed_;
  std::string set_;
  int64_t samples_;
};

}  // namespace

void MaskedRows::read(int64_t k, data::Sample& sample) const {
  data::BertExample example;
  examples_->read(k, example);
  const auto length = static_cast<size_t>(length_), tokens = example.tokens.size();
  MG_ASSERT(tokens > 0 && tokens <= length);
  sample.tokens = std::move(example.tokens);
  sample.tokens.resize(length, pad_);
  sample.token_types = std::move(example.token_types);
  sample.token_types.resize(length);
  sample.labels.assign(length, 0);
  sample.loss_mask.assign(length, 0);
  for (size_t t = 0; t < tokens; ++t) {
    if (example.labels[t] == data::TokenMasker::kIgnored) continue;
    sample.labels[t] = example.labels[t];
    sample.loss_mask[t] = 1;
  }
  sample.position_ids.assign(length, 0);
  std::iota(sample.position_ids.begin(),
            sample.position_ids.begin() + static_cast<std::ptrdiff_t>(tokens), 0);
  sample.segment_begin.assign(length, 0);
  std::iota(sample.segment_begin.begin() + static_cast<std::ptrdiff_t>(tokens),
            sample.segment_begin.end(), static_cast<int32_t>(tokens));
  sample.sources.assign(length, -1);
  std::fill_n(sample.sources.begin(), tokens, 0);
  sample.targets.clear();
  sample.pair_labels.clear();
  if (!pairs_) return;
  sample.pair_labels.assign(length, -1);
  sample.pair_labels[0] = example.is_random ? 1 : 0;
}

void MaskedRows::read_filler(data::Sample& sample) const {
  read(0, sample);
  std::ranges::fill(sample.loss_mask, 0.0f);
  std::ranges::fill(sample.pair_labels, -1);
}

Corpus open_masked(const ExampleFiles& files, const models::ModelFacts& model) {
  const settings::DataSettings& s = files.settings;
  const auto rows = [&](std::shared_ptr<const data::BertExamples> examples, int64_t pad) {
    return std::make_shared<const MaskedRows>(std::move(examples), files.seq_length, pad,
                                              model.pair_head);
  };
  return open_sentences(
      files, {.name = "mlm",
              .mock =
                  [&](data::Split split, int64_t samples) {
                    return rows(std::make_shared<const MockExamples>(
                                    files, model.pair_head, static_cast<int64_t>(split), samples),
                                MockExamples::kPad);
                  },
              .open =
                  [&](const SentenceSet& set) {
                    const data::BertTokens tokens = data::bert_tokens(*files.vocabulary.tokenizer);
                    const data::BertDatasetConfig config{
                        .sequence_length = files.seq_length,
                        .seed = files.seed,
                        .split = set.shares,
                        .next_sentence = model.pair_head,
                        .short_sequence_probability = s.short_seq_prob,
                        .masking = {.probability = s.mask_prob},
                        .allow_ambiguous_pad_tokens = s.allow_ambiguous_pad_tokens,
                        .megatron_data_order = s.megatron_data_order};
                    return rows(
                        data::build_bert_examples(set.list, tokens, config, set.split, set.ordered,
                                                  s.mid_level_dataset_surplus, set.samples),
                        tokens.pad);
                  }});
}

}  // namespace megatron::corpus
