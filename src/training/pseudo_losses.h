// Pseudo-perplexity of masked language models.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "corpus/documents.h"
#include "models/stage.h"
#include "tokenizers/text_ends.h"
#include "training/step.h"

namespace megatron::training {

// Documents whose tokens are each masked in turn: the loss of a token is that of its prediction
// from all others of its text (Salazar et al. 2020), so a text of n tokens is read n times. A
// document is read in texts of at most `length` tokens with the tokenizer's own ([CLS] and [SEP])
// around each, which are not masked.
class PseudoTexts {
 public:
  // Borrows the documents. Throws Error for a tokenizer without a mask token, and for a length
  // without room for a token.
  PseudoTexts(const corpus::Documents& documents, const tokenizers::Tokenizer& tokenizer,
              int64_t length);

  int64_t tokens() const;                                   // to be masked
  int64_t windows() const { return std::ssize(windows_); }  // texts

  // The losses of each document. progress: called with the number of tokens done.
  std::vector<LossSum> losses(const models::Stage& stage, Runtime& runtime,
                              const std::function<void(int64_t)>& progress) const;

 private:
  struct Window {
    int64_t document = 0;
    std::vector<int32_t> tokens;  // with those around them
    int64_t first = 0, end = 0;   // of the tokens to mask
  };

  void cut(int64_t document, std::vector<int32_t> tokens, int64_t length);

  int64_t documents_;
  int32_t mask_;
  int64_t vocabulary_;
  tokenizers::TextEnds ends_;
  std::vector<Window> windows_;
};

}  // namespace megatron::training
