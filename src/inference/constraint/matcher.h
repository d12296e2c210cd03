// Constrains the text of one request to a grammar, token by token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "inference/constraint/grammar.h"

namespace megatron::inference {

// Every allowed text can be completed: if the text may not end, some token is allowed. The text is
// what the tokenizer decodes from the accepted tokens alone. Used by one thread at a time; copies
// are independent.
class Matcher {
 public:
  // Throws Error if the tokenizer cannot spell any text of the grammar.
  Matcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenBytes> tokens);

  // Sets bit id % 64 of word id / 64 if the token may come next, and clears all others; complete:
  // the text may end here (the caller then allows its end tokens). mask has at least
  // tokens->words() words. Throws Error if the grammar is so ambiguous for this text that finding
  // the tokens takes too long; the request cannot continue then.
  void allowed(std::span<uint64_t> mask, bool& complete);
  void accept(int32_t token);  // throws Error if it is not allowed
  bool complete() const;
  bool must_end() const;  // the text is complete, and nothing may follow

 private:
  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenBytes> tokens_;
  std::shared_ptr<Automaton> automaton_;
  int32_t frontier_;
};

}  // namespace megatron::inference
