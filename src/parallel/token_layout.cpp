#include "parallel/token_layout.h"

#include "base/error.h"

namespace megatron::parallel {

std::vector<TokenRun> TokenLayout::runs() const {
  if (ranks == 1) return {{0, length}};
  const int64_t chunks = 2 * ranks, size = length / chunks;
  return {{rank * size, size}, {(chunks - 1 - rank) * size, size}};
}

TokenLayout TokenLayout::of_rank(int other) const {
  TokenLayout layout = *this;
  layout.rank = other;
  return layout;
}

void TokenLayout::check() const {
  const int64_t chunks = 2 * ranks;
  MG_CHECK(ranks == 1 || length % chunks == 0,
           "--context-parallel-size {} cuts each sequence into {} chunks of equal size, but {} "
           "tokens (--seq-length) cannot be: use a multiple of {}",
           ranks, chunks, length, chunks);
}

}  // namespace megatron::parallel
