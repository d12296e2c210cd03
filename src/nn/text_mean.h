// The mean of each text's tokens.
#pragma once

#include "nn/batch.h"
#include "parallel/context_attention.h"

namespace megatron::nn {

// y[t] = mean of x over the tokens of t's document (Batch::segment_starts and segment_ends), for x
// [T,H] of the tokens that this rank holds outside the matrix products; y alike. It is the
// attention of queries and keys that are 0 to the values x, in `heads` equal parts of H, and so has
// its exchanges between ranks. context must outlive the tape.
Var text_mean(Tape& tape, const Var& x, const Batch& batch, int64_t heads,
              const parallel::TensorParallel& tensor, const parallel::ContextParallel& context);

}  // namespace megatron::nn
