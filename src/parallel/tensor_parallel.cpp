#include "parallel/tensor_parallel.h"

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

}  // namespace megatron::parallel
