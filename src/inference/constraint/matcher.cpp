#include "inference/constraint/matcher.h"

#include <utility>

#include "base/error.h"
#include "inference/constraint/automaton.h"

namespace megatron::inference {

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenBytes> tokens)
    : grammar_(std::move(grammar)),
      tokens_(std::move(tokens)),
      automaton_(grammar_->automaton(tokens_)),
      frontier_(automaton_->start()) {}

void Matcher::allowed(std::span<uint64_t> mask, bool& complete) {
  MG_CHECK(mask.size() >= tokens_->words(),
           "a mask of {} words is too short for a vocabulary of {}; it needs {}", mask.size(),
           tokens_->size(), tokens_->words());
  automaton_->allowed(frontier_, mask, complete);
}

void Matcher::accept(int32_t token) {
  if (automaton_->is_full()) {
    const std::shared_ptr<Automaton> next = grammar_->automaton(tokens_);
    if (next != automaton_) frontier_ = next->adopt(*automaton_, frontier_);
    automaton_ = next;
  }
  const int32_t next = automaton_->accept(frontier_, token);
  MG_CHECK(next >= 0, "the grammar does not allow token {} here", token);
  frontier_ = next;
}

bool Matcher::complete() const { return automaton_->complete(frontier_); }
bool Matcher::must_end() const { return automaton_->must_end(frontier_); }

}  // namespace megatron::inference
