// Hides tokens of a sample, which a model then learns to predict: whole words and runs of words,
// as in BERT (Devlin et al., 2019) and SpanBERT (Joshi et al., 2020), with the draws of
// Megatron-LM.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/bert_tokens.h"
#include "data/random_state.h"

namespace megatron::data {

struct MaskingOptions {
  double probability = 0.15;  // share of the tokens that are masked, in (0, 1)
  int64_t max_ngram = 3;      // most words that are masked together
  bool whole_words = true;    // false: each token is a word
  // Lengths of runs: n has a weight of 1/n, or that of max_ngram + 1 - n with longer_ngrams, or the
  // probability 0.2 * 0.8^(n - 1) with geometric, which goes before.
  bool longer_ngrams = false, geometric = false;
  bool permutation = false;  // also permutes as many tokens as are masked; not with geometric
  bool only_masks = false;   // every masked token becomes mask, without a draw, as for T5
  // Megatron-LM's results where they are slips: random replacements are any of the tokenizer's
  // tokens, special ones too, and a part that begins in the middle of a word continues the last
  // word of the part before it. Otherwise replacements are ordinary tokens, and words end with
  // their part.
  bool megatron_data_order = false;
};

// Throws Error naming the flag of an option out of range.
void check_masking(const MaskingOptions& options);

// Words that were masked together, from the first to the last of their tokens.
struct MaskedRun {
  size_t first = 0, last = 0;
};

class TokenMasker {
 public:
  static constexpr int64_t kIgnored = -100;  // label of a token that is not predicted

  // Throws Error naming the flag of an option out of range.
  TokenMasker(const MaskingOptions& options, BertTokens tokens);

  // Masks about probability * tokens.size() tokens, at most probability * target, and fills in
  // labels, one for each token: the original id of a masked or permuted token, else kIgnored. A
  // masked token becomes mask (80%), a random token (10%) or stays (10%); cls and sep are never
  // masked. lengths: generator of the lengths of permuted runs; null: `random`. runs, if not null:
  // gets the masked runs, in the order of their tokens.
  void mask(std::span<int64_t> tokens, int64_t target, RandomState& random, RandomState* lengths,
            std::span<int64_t> labels, std::vector<MaskedRun>* runs = nullptr) const;

  const BertTokens& tokens() const { return tokens_; }
  int64_t replacements() const { return static_cast<int64_t>(replacements_.size()); }

 private:
  class Words;
  size_t draw_length(RandomState& random) const;
  void replace(int64_t& token, RandomState& random) const;
  void permute(std::span<int64_t> tokens, const Words& words, std::span<const uint32_t> order,
               double limit, RandomState& random, RandomState& lengths,
               std::span<int64_t> labels) const;

  MaskingOptions options_;
  BertTokens tokens_;
  std::vector<int64_t> replacements_;  // ids of random tokens
  WeightedChoice ngrams_;              // n - 1
};

}  // namespace megatron::data
