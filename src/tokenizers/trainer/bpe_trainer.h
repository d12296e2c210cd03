// Learns a byte-level BPE vocabulary: the same merges, and the same ids, as Hugging Face's
// BpeTrainer.
//
// Ids: special tokens, then the letters of the alphabet by code point, then merges. The next merge
// is the pair with the highest count, on a tie the pair with the smaller (left id, right id).
// Overlapping pairs count ("aaa" has two). A merge whose text is a token already takes that token's
// id. Training stops at vocabulary_size tokens or below max(1, min_frequency). Memory: one entry
// for each different word, not the text. The result does not depend on `threads`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/tokenizer.h"

namespace megatron::tokenizers {

struct BpeTrainerOptions {
  int64_t vocabulary_size = 32000;  // includes special tokens and letters
  int64_t min_frequency = 0;        // minimum frequency of a pair
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  std::string pattern = "gpt2";  // how text is split into words: gpt2, llama3 or qwen2
  bool add_prefix_space = false;
  bool all_bytes = true;  // the alphabet has all 256 bytes, not only those that occur
  // In bytes. Pairs must be shorter, except those of two bytes; 0: no limit.
  int64_t max_token_length = 0;
  int threads = 1;  // for counting
};

class BpeTrainer {
 public:
  // Throws Error naming the option if one is out of range.
  explicit BpeTrainer(BpeTrainerOptions options);
  ~BpeTrainer();
  BpeTrainer(BpeTrainer&&) noexcept;

  // Adds one document; throws Error if it is not valid UTF-8. Counting runs on all threads whenever
  // enough text has accumulated.
  void add(std::string_view text);

  // Called occasionally with the number of tokens so far and the requested number.
  using OnProgress = std::function<void(int64_t tokens, int64_t wanted)>;
  Tokenizer train(const OnProgress& progress = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron::tokenizers
