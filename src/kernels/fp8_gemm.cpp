#include "kernels/fp8_gemm.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const Fp8GemmArgs& args) {
  const Rules rules("fp8_gemm", args);
  rules.require(args.a.defined() && args.b.defined() && args.out.defined(), "a, b and out defined");
  rules.require(args.a.rank() == 2 && args.b.rank() == 2 && args.out.rank() == 2, "2-D");
  const int64_t m = args.a.size(0), k = args.a.size(1), n = args.b.size(0);
  rules.dense(args.a, {m, k}, DType::u8, "a u8 [M,K]");
  rules.dense(args.b, {n, k}, DType::u8, "b u8 [N,K]");
  rules.require(m % kFp8Step == 0 && n % kFp8Step == 0 && k % kFp8Step == 0,
                "M, N and K are multiples of 16");
  rules.require(args.a_format != LowFormat::e2m1 && args.b_format != LowFormat::e2m1 &&
                    (args.a_format != LowFormat::e5m2 || args.b_format != LowFormat::e5m2),
                "e4m3 and e4m3 or e5m2");
  rules.dense(args.a_scale, {}, DType::f32, "a_scale f32 0-d");
  rules.dense(args.b_scale, {}, DType::f32, "b_scale f32 0-d");
  rules.require(args.out.size(0) == m && args.out.size(1) == n, "out is [M,N]");
  rules.require(is_16_bit(args.out) || args.out.dtype() == DType::f32, "out of bf16, f16 or f32");
  rules.require(last_is_dense(args.out) && (m <= 1 || args.out.stride(0) >= n),
                "rows of out dense and apart");
  rules.require(args.beta == 0 || args.beta == 1, "beta is 0 or 1");
  rules.optional(args.bias, {n}, args.out.dtype(), "bias [N] of the type of out");
}

}  // namespace megatron::kernels
