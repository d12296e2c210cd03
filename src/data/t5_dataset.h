// Samples for training T5 on sentences: the encoder reads a text in which a sentinel stands for
// each masked span, and the decoder writes every sentinel followed by the tokens of its span
// (Raffel et al., 2020).
//
// The token files hold one sequence per sentence (preprocess --split-sentences). Samples are those
// of Megatron-LM's T5 data set, in its order. Where its samples depend on the order of access or
// read like a slip, the default differs, and megatron_data_order gives Megatron-LM's numbers;
// docs/data.md lists them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/example_source.h"
#include "data/sentence_samples.h"
#include "data/t5_tokens.h"
#include "data/token_masking.h"

namespace megatron::data {

struct T5DatasetConfig {
  int64_t sequence_length = 0;       // of the encoder; at least 4
  int64_t decoder_length = 0;        // at least 1
  int64_t seed = 1234;               // in [1, 2^31 - 2]
  std::optional<std::string> split;  // shares of the documents; none: the source is a single split
  double short_sequence_probability = 0.1;                        // --short-seq-prob
  MaskingOptions masking = {.max_ngram = 10, .geometric = true};  // its last two are unused
  bool allow_ambiguous_pad_tokens = false;  // affects megatron_data_order only
  bool megatron_data_order = false;
  std::optional<int64_t> memory;  // bytes; none: the machine's
};

// One sample without padding: n tokens of the encoder, at most sequence_length - 2, and m of the
// decoder, at most decoder_length.
struct T5Example {
  std::vector<int64_t> encoder_tokens;
  std::vector<int64_t> decoder_tokens;  // begin, then each sentinel and its span
  std::vector<int64_t> labels;          // [m]: the decoder's text from its second token on, and end
  std::vector<float> loss_mask;         // [m]: 1
  bool truncated = false;               // tokens were cut off to fit the target length
};

// The same as Megatron-LM's fields, padded to both lengths. Its masks, whose ones come first, are
// lengths here.
struct PaddedT5Sample {
  std::vector<int64_t> text_enc, text_dec, labels;  // labels: -1 where there is none
  int64_t encoder_length = 0, decoder_length = 0;   // ones of enc_mask, of dec_mask and loss_mask
  bool truncated = false;
};

using T5Examples = ExampleSource<T5Example>;

class T5Dataset final : public T5Examples {
 public:
  // samples: the fewest samples; must be given. extended: served, if more (SentenceRequest). Throws
  // Error naming the source and the split if it
  // has no document that makes a sample.
  T5Dataset(std::shared_ptr<const IndexedDataset> source, const T5Tokens& tokens,
            T5DatasetConfig config, Split split, std::optional<int64_t> samples,
            int64_t extended = 0);

  int64_t size() const override { return samples_.size(); }
  bool keeps_order(int64_t samples) const override { return samples_.keeps_order(samples); }
  // Throws Error also for a sample with more spans than there are sentinels, and for one that the
  // decoder has no room for.
  void read(int64_t k, T5Example& example) const override;
  // permuted_lengths: as for BertDataset.
  void read_padded(int64_t k, PaddedT5Sample& sample,
                   RandomState* permuted_lengths = nullptr) const;

  const SentenceSamples& samples() const { return samples_; }
  // Id that padding has: -1 with megatron_data_order if the tokenizer's padding is ambiguous.
  int64_t pad_id() const { return pad_; }

 private:
  void compose(int64_t k, T5Example& example, RandomState* permuted_lengths) const;
  std::span<const int64_t> sentinels(int64_t k, size_t spans) const;

  T5DatasetConfig config_;
  T5Tokens tokens_;
  TokenMasker masker_;
  int64_t pad_;
  SentenceSamples samples_;
};

using T5Blend = ExampleBlend<T5Dataset, T5Example>;

// Opens the sources of a list and builds the examples of one split, as build_bert_examples does.
std::shared_ptr<const T5Examples> build_t5_examples(const BlendList& list, const T5Tokens& tokens,
                                                    const T5DatasetConfig& config, Split split,
                                                    std::optional<int64_t> samples,
                                                    double surplus = 0.005, int64_t extended = 0);

}  // namespace megatron::data
