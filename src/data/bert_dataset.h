// Samples for training encoders on sentences: [CLS] A [SEP] B [SEP] with masked tokens, where A and
// B are consecutive sentences of a document or, half of the time, swapped; or [CLS] A [SEP] alone.
//
// The token files hold one sequence per sentence (preprocess --split-sentences). Samples are those
// of Megatron-LM's BERT data set, in its order. Where its samples depend on the order of access or
// read like a slip, the default differs, and megatron_data_order gives Megatron-LM's numbers;
// docs/data.md lists them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/bert_tokens.h"
#include "data/example_source.h"
#include "data/sentence_samples.h"
#include "data/token_masking.h"

namespace megatron::data {

struct BertDatasetConfig {
  int64_t sequence_length = 0;       // S, with [CLS] and [SEP]; at least 5
  int64_t seed = 1234;               // in [1, 2^31 - 2]
  std::optional<std::string> split;  // shares of the documents; none: the source is a single split
  bool next_sentence = true;         // false (--bert-no-binary-head): samples have only the part A
  double short_sequence_probability = 0.1;  // --short-seq-prob
  MaskingOptions masking;                   // with --mask-prob; its megatron_data_order is unused
  bool allow_ambiguous_pad_tokens = false;  // affects megatron_data_order only
  bool megatron_data_order = false;
  std::optional<int64_t> memory;  // bytes; none: the machine's
};

// One sample without padding: n tokens, n <= S.
struct BertExample {
  std::vector<int64_t> tokens, token_types;  // types: 0 for [CLS] A [SEP], 1 for B [SEP]
  std::vector<int64_t> labels;  // original id of a masked token, TokenMasker::kIgnored of others
  bool is_random = false;       // label of the next sentence: A and B are swapped
  bool truncated = false;       // tokens were cut off to fit the target length
};

// The same as Megatron-LM's fields, padded to S.
struct PaddedBertSample {
  std::vector<int64_t> text, types, padding_mask;  // padding_mask: 1 for tokens
  std::vector<int64_t> labels, loss_mask;          // labels: -1 where there is none
  bool is_random = false, truncated = false;
};

using BertExamples = ExampleSource<BertExample>;

class BertDataset final : public BertExamples {
 public:
  // samples: the fewest samples; must be given. extended: served, if more (SentenceRequest). Throws
  // Error naming the source and the split if it
  // has no document, or none with enough sentences.
  BertDataset(std::shared_ptr<const IndexedDataset> source, const BertTokens& tokens,
              BertDatasetConfig config, Split split, std::optional<int64_t> samples,
              int64_t extended = 0);

  int64_t size() const override { return samples_.size(); }
  bool keeps_order(int64_t samples) const override { return samples_.keeps_order(samples); }
  void read(int64_t k, BertExample& example) const override;
  // permuted_lengths: with megatron_data_order, the generator that draws the lengths of permuted
  // runs. Megatron-LM uses NumPy's global one, so that a sample depends on those read before it.
  // Null: a new one of the seed, for each sample.
  void read_padded(int64_t k, PaddedBertSample& sample,
                   RandomState* permuted_lengths = nullptr) const;

  const SentenceSamples& samples() const { return samples_; }
  // Id that padding has: -1 with megatron_data_order if the tokenizer's padding is ambiguous.
  int64_t pad_id() const { return pad_; }
  const TokenMasker& masker() const { return masker_; }

 private:
  struct Parts;
  Parts parts_of(int64_t k, RandomState& random, std::vector<int64_t>& tokens) const;
  void compose(int64_t k, BertExample& example, RandomState* permuted_lengths) const;

  BertDatasetConfig config_;
  TokenMasker masker_;
  int64_t pad_;
  SentenceSamples samples_;
};

using BertBlend = ExampleBlend<BertDataset, BertExample>;

// Opens the sources of a list and builds the examples of one split: a data set, or a blend if the
// list has weights. surplus: extra samples that are built for each part, relative to its share.
// Throws Error for several sources without weights.
std::shared_ptr<const BertExamples> build_bert_examples(
    const BlendList& list, const BertTokens& tokens, const BertDatasetConfig& config, Split split,
    std::optional<int64_t> samples, double surplus = 0.005, int64_t extended = 0);

}  // namespace megatron::data
