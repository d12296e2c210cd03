#include "kernels/cuda_scratch/embedding.h"

#include <algorithm>

namespace megatron::kernels::cuda {

Tensor embedding_backward_scratch(const EmbeddingBackwardArgs& args, Stream& stream) {
  const int64_t rows = args.dtable.out.size(0), tokens = args.ids.elements();
  return Tensor::empty(stream.scratch(), {2 * rows + 2 + tokens + std::min(rows, tokens)},
                       DType::i32, "tokens by row");
}

}  // namespace megatron::kernels::cuda
