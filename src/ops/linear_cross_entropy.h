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
// adapter: added to w. bias [V], or none: added to every row of logits before the cap. hits [T] as
// weights, unless undefined: set to 1 where no logit is above the label's, else to 0.
Tensor linear_cross_entropy(Tape& tape, const Var& x, const Weight& weight, const Tensor& labels,
                            const Tensor& weights, double soft_cap = 0, const LowRank& adapter = {},
                            const Weight& bias = {}, const Tensor& hits = {});

// The products of an output layer with chunks of rows, one after another. If the weight has a
// recipe (Parameter::low_precision), which must have blocks alone, they are quantized: chunks begin
// where blocks do, and the weight is quantized once along either axis, for all chunks. All
// arguments are borrowed.
class OutputProducts {
 public:
  OutputProducts(const Weight& weight, const Weight& bias, Tape& tape)
      : weight_(weight), bias_(bias), tape_(tape) {}

  // logits = x w^T + bias.
  void logits(const Tensor& x, const Tensor& logits);
  // dx = dlogits w.
  void input_gradient(const Tensor& dlogits, const Tensor& dx);
  // Adds dlogits^T x and the sum of dlogits' rows, which are contiguous if there is a bias, to the
  // slots of the weight and the bias.
  void weight_gradients(const Tensor& dlogits, const Tensor& x);

 private:
  const Weight &weight_, &bias_;
  Tape& tape_;
  Tensor along_inputs_, along_outputs_;  // the quantized weight
};

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

}  // namespace megatron::ops
