#include "kernels/gemm.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

void check_epilogue(const Rules& rules, const GemmArgs& args) {
  if (const Accumulate& sums = args.bias_gradient; sums.out.defined()) {
    rules.require(args.out.rank() == 2 && args.transpose_a && args.a.is_contiguous(),
                  "bias_gradient with a 2-D, contiguous, transposed");
    rules.require(args.epilogue == Epilogue::none, "bias_gradient or an epilogue");
    rules.sum(sums, {args.out.size(0)}, accumulator(args.a.dtype()), "bias_gradient f32 (f64) [M]");
  }
  if (args.epilogue == Epilogue::none) {
    rules.require(!args.aux.defined(), "aux with an epilogue only");
    return;
  }
  rules.require(args.out.rank() == 2 && args.beta == 0 && args.out.is_contiguous(),
                "an epilogue in 2-D with beta 0 and out contiguous");
  const bool gradient = args.epilogue == Epilogue::gelu_gradient;
  rules.require(!gradient || (args.aux.defined() && !args.bias.defined()),
                "gelu_gradient with aux and without bias");
  if (!args.aux.defined()) return;
  rules.dense(args.aux, args.out.shape(), args.out.dtype(), "aux as out");
  rules.require(args.out.elements() == 0 || args.aux.storage_id() != args.out.storage_id() ||
                    args.aux.offset() != args.out.offset(),
                "aux and out apart");
}

}  // namespace

void check(const GemmArgs& args) {
  const Rules rules("gemm", args);
  rules.require(args.a.defined() && args.b.defined() && args.out.defined(), "a, b and out defined");
  const int rank = args.out.rank();
  rules.require((rank == 2 || rank == 3) && args.a.rank() == rank && args.b.rank() == rank,
                "a, b and out of rank 2, or 3 with a batch");
  const int64_t m = args.a.size(args.transpose_a ? -1 : -2),
                k = args.a.size(args.transpose_a ? -2 : -1);
  const int64_t n = args.b.size(args.transpose_b ? -2 : -1);
  rules.require(args.b.size(args.transpose_b ? -1 : -2) == k,
                "inner sizes of op(a) and op(b) equal");
  rules.require(args.out.size(-2) == m && args.out.size(-1) == n, "out is [M,N]");
  rules.require(
      rank == 2 || (args.a.size(0) == args.out.size(0) && args.b.size(0) == args.out.size(0)),
      "one batch size");
  rules.require(last_is_dense(args.a) && last_is_dense(args.b) && last_is_dense(args.out),
                "last dims of stride 1");
  rules.require(m <= 1 || args.out.stride(-2) >= n, "rows of out do not overlap");
  rules.require(is_float_type(args.a) && args.a.dtype() == args.b.dtype(),
                "a and b of one floating type");
  rules.require(
      args.out.dtype() == args.a.dtype() || (is_16_bit(args.a) && args.out.dtype() == DType::f32),
      "out of the type of a, or f32 for bf16 and f16");
  rules.require(args.beta == 0 || args.beta == 1, "beta is 0 or 1");
  rules.require(!args.double_sums || (rank == 2 && args.epilogue == Epilogue::none &&
                                      accumulator_of(args.out, args.a.dtype())),
                "double_sums in 2-D without an epilogue, out f32 (f64)");
  check_epilogue(rules, args);
  rules.optional(args.a_scale, {}, DType::f32, "a_scale f32 0-d");
  rules.optional(args.b_scale, {}, DType::f32, "b_scale f32 0-d");
  if (!args.bias.defined()) return;
  rules.require(rank == 2, "bias in 2-D only");
  rules.require(args.bias.rank() == 1 && args.bias.size(0) == n && args.bias.is_contiguous() &&
                    (args.bias.dtype() == args.a.dtype() || args.bias.dtype() == args.out.dtype()),
                "bias [N] of the type of a or of out");
}

}  // namespace megatron::kernels
