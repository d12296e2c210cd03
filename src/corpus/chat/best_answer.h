// The answer that a model's scores of tokens give.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

namespace megatron::corpus {

// Tokens [first, last] of a window; 0 and 0: none.
struct TokenSpan {
  int64_t first = 0, last = 0;
  double score = -std::numeric_limits<double>::infinity();  // sum of its two scores
};

constexpr int64_t kLongestAnswer = 30;  // tokens, as in transformers' example

// The span of at most `longest` tokens in [begin, end) whose first token's first score and last
// token's second score have the largest sum; of equal ones, the first. scores [tokens, 2]; -inf if
// [begin, end) is empty.
template <class Number>
TokenSpan best_answer(std::span<const Number> scores, int64_t begin, int64_t end,
                      int64_t longest = kLongestAnswer) {
  TokenSpan best;
  for (int64_t first = begin; first < end; ++first) {
    for (int64_t last = first; last < end && last < first + longest; ++last) {
      const double score = static_cast<double>(scores[static_cast<size_t>(2 * first)]) +
                           static_cast<double>(scores[static_cast<size_t>(2 * last + 1)]);
      if (score > best.score) best = {first, last, score};
    }
  }
  return best;
}

}  // namespace megatron::corpus
