#include "parallel/tensor_parallel.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::parallel {

Slice TensorParallel::tokens(int64_t tokens) const {
  if (!divides_tokens()) return {.size = tokens};
  MG_CHECK(tokens % size() == 0,
           "--sequence-parallel divides the tokens of a micro-batch evenly: {} tokens cannot be "
           "divided by {} ranks; change --seq-length, --micro-batch-size or "
           "--tensor-model-parallel-size",
           tokens, size());
  const int64_t share = tokens / size();
  return {.global_begin = rank() * share, .size = share};
}

Slice share_of(int64_t total, int ranks, int rank) {
  MG_ASSERT(ranks > 0 && rank >= 0 && rank < ranks);
  const int64_t share = (total + ranks - 1) / ranks, begin = std::min(total, rank * share);
  return {.global_begin = begin, .size = std::min(share, total - begin)};
}

}  // namespace megatron::parallel
