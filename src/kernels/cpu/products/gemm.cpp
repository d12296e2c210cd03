#include <vector>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/products/gemm_each.h"
#include "kernels/cpu/products/problem.h"
#include "kernels/cpu/table.h"
#include "kernels/epilogue.h"
#include "kernels/table.h"

namespace megatron::kernels::cpu {

namespace {

// Row stride of a matrix. That of a single row is irrelevant, so its width is used.
int64_t row_stride(const Tensor& t) { return t.size(-2) == 1 ? t.size(-1) : t.stride(-2); }

Problem describe(const GemmArgs& args) {
  const Tensor& a = args.a;
  const Tensor& b = args.b;
  const Tensor& out = args.out;
  const bool batched = out.rank() == 3;
  Problem p;
  p.batch = batched ? out.size(0) : 1;
  p.m = out.size(-2);
  p.n = out.size(-1);
  p.k = a.size(args.transpose_a ? -2 : -1);
  p.lda = row_stride(a);
  p.ldb = row_stride(b);
  p.ldc = row_stride(out);
  if (batched) {
    p.batch_a = a.stride(0);
    p.batch_b = b.stride(0);
    p.batch_c = out.stride(0);
  }
  p.transpose_a = args.transpose_a;
  p.transpose_b = args.transpose_b;
  p.accumulate = args.beta == 1;
  p.in = a.dtype();
  p.result = out.dtype();
  p.double_sums = args.double_sums;
  p.factor = product_factor(args.a_scale, args.b_scale);
  if (p.batch * p.m * p.n == 0) return p;
  p.out = static_cast<std::byte*>(out.raw());
  if (p.k > 0) {
    p.a = static_cast<const std::byte*>(a.raw());
    p.b = static_cast<const std::byte*>(b.raw());
  }
  if (args.bias.defined()) {
    p.bias = static_cast<const std::byte*>(args.bias.raw());
    p.bias_type = args.bias.dtype();
  }
  return p;
}

}  // namespace

void gemm(const GemmArgs& args, Stream& stream) {
  if (has_epilogue(args)) return gemm_by_parts(args, cpu_table(), stream);
  compute(describe(args), stream);
}

void gemm_each(std::span<const GemmArgs> calls, Stream& stream) {
  std::vector<Problem> problems;
  for (const GemmArgs& call : calls) problems.push_back(describe(call));
  compute_each(problems, stream);
}

}  // namespace megatron::kernels::cpu
