#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// How the products with a weight, or those of its gradient, are quantised; null: not at all.
const LowPrecision* quantization_of(const Weight& weight, bool of_weight_gradient);

// Computes the call, of 2-D operands a and b, which are quantised first if the weight has a recipe
// (Parameter::low_precision). The sums of a bias gradient are those of a as it was. Scales and
// chances depend on the operands and on the state of the step, so backward and recomputation
// quantise a tensor again to the same bits. The scale of a divided tensor is collective over the
// ranks that hold its parts. for_wgrad: of Backward, for the product of the input's gradient and
// then that of the weight's: the first one quantises the gradient for both where it can.
void multiply(kernels::GemmArgs call, Operand a, Operand b, const Weight& weight, Tape& tape,
              std::any* for_wgrad = nullptr);

// One operand of such a product, in recipes whose values include all scales (blockwise, mxfp8).
// axis: over which the product sums.
Tensor quantized(const Tensor& x, Operand operand, int axis, const Weight& weight, Tape& tape);

// The call with quantised operands and their scales: of products with a weight of experts
// [G,out,in], b of grouped_gemm, and of their gradient. A tensor is the one of all experts; blocks
// of tokens are those of one expert. In fp4, the tape's batch_rows() are those of the experts'
// rows, whose gradients are rounded by the random numbers of their tokens. The bias gradient must
// be asked for by a call of its own.
kernels::GroupedGemmArgs quantized(kernels::GroupedGemmArgs call, Operand a, const Weight& weight,
                                   Tape& tape);
kernels::GroupedGradientArgs quantized(kernels::GroupedGradientArgs call, const Weight& weight,
                                       Tape& tape);

}  // namespace megatron::ops
