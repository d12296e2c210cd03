#pragma once

#include "autograd/tape.h"
#include "ops/low_rank.h"

namespace megatron::ops {

// loss[t] = cross entropy of the logits x[t,:] w^T, capped if soft_cap is above 0
// (kernels/soft_cap.h), against labels[t]; the objective is sum_t weights[t] * loss[t]. x [T,H], w
// [V,H], labels i32 [T] (not read where the weight is 0), weights f32 (f64) [T]; loss f32 (f64)
// [T]. The logits are never all stored: rows are processed in chunks of a fixed size. Both
// gradients are computed while a chunk's logits exist (dx is kept for backward, dw added to its
// slot), so nothing is computed twice. Backward starts here, and the upstream gradient is 1.
// adapter: added to w. bias [V], or none: added to every row of logits before the cap.
Tensor linear_cross_entropy(Tape& tape, const Var& x, const Weight& weight, const Tensor& labels,
                            const Tensor& weights, double soft_cap = 0, const LowRank& adapter = {},
                            const Weight& bias = {});

// Number of rows of a chunk of logits with this many columns, computed by the kernels of `target`.
int64_t loss_chunk_rows(int64_t vocabulary, const Stream::Target& target);

// Scratch for a chunk of logits, or of values computed from them: [rows, vocabulary]. On CUDA the
// row stride is a multiple of 128 elements, so that each row is 16-byte aligned for cuBLASLt,
// unless the rows must be contiguous (dense): the kernels of soft caps and of the gradient of a
// bias need that.
Tensor loss_chunk(Stream& stream, int64_t rows, int64_t vocabulary, DType type, bool dense,
                  const char* label);

// The logits x w^T [T,V] with the same bits as those of the loss: f32 (f64). Not an op: nothing is
// recorded, the tape only computes.
Tensor linear_logits(const Tensor& x, const Weight& weight, Tape& tape, double soft_cap = 0,
                     const LowRank& adapter = {}, const Weight& bias = {});

// Adds the gradient of an output layer's bias to its slot: the sum of the rows of dlogits, which
// are contiguous. Nothing for no bias.
void add_bias_gradient(const Weight& bias, const Tensor& dlogits, Tape& tape);

}  // namespace megatron::ops
