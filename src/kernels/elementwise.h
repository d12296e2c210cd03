// Element-wise sums, copies and reductions without weights.
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// out = a + b, of one shape, contiguous. Each may have any floating type; the sum is in f32 (f64 if
// one is f64). out may be a or b. For a [T,N], b may also be [N]: one row that is added to all (a
// bias).
struct AddArgs {
  Tensor a, b, out;
};

// out = x, converted. Any strides, same shape; floating types, or the same integer type.
struct CopyArgs {
  Tensor x, out;
};

// Sets every element of out to value; out is contiguous.
struct FillArgs {
  Tensor out;
  double value = 0;
};

// out[n] = sum_t x[t,n] + beta * out[n]; x [T,N] contiguous, out [N] f32 (f64): the gradient of a
// bias. Rows are summed in fixed blocks, the blocks in order.
struct ColumnSumArgs {
  Tensor x;
  Accumulate out;
};

// out (0-d f64) = sum of weights[i] * x[i] in ascending order; x, weights [T] f32 or f64. Undefined
// weights are 1.
struct SumArgs {
  Tensor x, weights, out;
};

inline constexpr int64_t kNormBlock = 16384;
// partial[i] = sum of x[j]^2 over block i of kNormBlock elements, in f64. x contiguous f32 or f64
// (n elements), partial f64 [ceil(n / kNormBlock)]. Each block is summed by eight interleaved f64
// accumulators, added pairwise: ((0+1)+(2+3))+((4+5)+(6+7)).
struct SumOfSquaresArgs {
  Tensor x, partial;
};

void check(const AddArgs& args);
void check(const CopyArgs& args);
void check(const FillArgs& args);
void check(const ColumnSumArgs& args);
void check(const SumArgs& args);
void check(const SumOfSquaresArgs& args);

template <class F>
void visit(AddArgs& a, F&& f) {
  f("a", Access::read, a.a);
  f("b", Access::read, a.b);
  f("out", Access::write, a.out);
}
template <class F>
void visit(CopyArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("out", Access::write, a.out);
}
template <class F>
void visit(FillArgs& a, F&& f) {
  f("out", Access::write, a.out);
}
template <class F>
void visit(ColumnSumArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("out", written(a.out.beta), a.out.out);
}
template <class F>
void visit(SumArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("weights", Access::read, a.weights);
  f("out", Access::write, a.out);
}
template <class F>
void visit(SumOfSquaresArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("partial", Access::write, a.partial);
}

}  // namespace megatron::kernels
