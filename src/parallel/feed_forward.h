// A feed-forward block whose wide intermediate results exist for a part of the tokens at a time.
#pragma once

#include "autograd/tape.h"
#include "kernels/activation.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

// down(f(up x)), or down(f(gate x) * (up x)) when gated (nn/mlp.h): this rank's weights, divided as
// in column_linear and row_linear; biases may be none.
struct FeedForward {
  Weight up, up_bias, down, down_bias;
  kernels::Activation activation = kernels::Activation::gelu_tanh;
  bool gated = false;
  double clamp = 0, up_offset = 0;
  int64_t chunks = 1;
};

// The same bits on the host as column_linear, ops::activation and row_linear, with the same calls
// to other ranks. Forward computes `chunks` runs of rows one after another, and only x is kept.
// Backward computes the intermediate results again, twice, each time so that every sum is whole: by
// runs of rows for the gradient of x, which is a sum over the width, and by slices of the width for
// those of the weights, which are sums over the rows. There are at most as many slices as runs; all
// but the last are a multiple of 32 wide. If tokens are divided, x is gathered again before the
// gradient of x is computed, and the gradient's sum over the ranks overlaps with the weights'
// gradients.
Var feed_forward(Tape& tape, const Var& x, const FeedForward& block, const TensorParallel& tp);

}  // namespace megatron::parallel
