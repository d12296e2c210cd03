#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// loss[t] = cross entropy of the logits x[t,:] w^T, capped where soft_cap is above 0 (kernels/soft_cap.h),
// against labels[t]; the objective is sum_t weights[t] * loss[t]. x [T,H], w [V,H], labels i32 [T] (not read where the weight is 0), weights
// f32 (f64) [T]; loss f32 (f64) [T]. All logits are never stored: rows are taken in chunks of a
// fixed size. While a chunk's logits are there, both gradients are formed from them (dx kept for
// backward, dw added to its slot), so that nothing is computed twice; this is where backward
// starts, and the upstream gradient is 1.
Tensor linear_cross_entropy(Tape& tape, const Var& x, const Weight& weight, const Tensor& labels,
                            const Tensor& weights, double soft_cap = 0);

// Rows of a chunk of logits of so many columns, computed by the kernels of `target`.
int64_t loss_chunk_rows(int64_t vocabulary, const Stream::Target& target);

// Scratch for a chunk of logits, or of what is formed from them: [rows, vocabulary]. On CUDA rows lie
// a multiple of 128 elements apart, so that each begins at 16 bytes for cuBLASLt, unless they are
// capped: kernels/soft_cap.h takes contiguous ones.
Tensor loss_chunk(Stream& stream, int64_t rows, int64_t vocabulary, DType type, bool capped,
                  const char* label);

// The logits x w^T [T,V] that the loss is formed from, bit for bit: f32 (f64). Not an op: nothing
// is recorded, the tape only computes.
Tensor linear_logits(const Tensor& x, const Weight& weight, Tape& tape, double soft_cap = 0);

}  // namespace megatron::ops
