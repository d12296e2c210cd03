#include "kernels/fp8_gemm.h"

#include <array>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/scratch.h"

namespace megatron::kernels::cpu {
namespace {

template <class T>
void decode_all(const Tensor& codes, LowFormat format, const Tensor& values, Stream& stream) {
  std::array<T, 256> table;
  for (size_t code = 0; code < table.size(); ++code)
    table[code] = T(decode(format, static_cast<uint8_t>(code)));
  const auto* from = codes.data<uint8_t>();
  auto* to = values.data<T>();
  for_blocks(stream, codes.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = table[from[i]];
  });
}

void decode_all(const Tensor& codes, LowFormat format, const Tensor& values, Stream& stream) {
  values.dtype() == DType::f16 ? decode_all<f16>(codes, format, values, stream)
                               : decode_all<bf16>(codes, format, values, stream);
}

}  // namespace

Fp8Values fp8_gemm_scratch(const Fp8GemmArgs& args, Stream& stream) {
  const DType type = args.out.dtype() == DType::f16 ? DType::f16 : DType::bf16;
  return {Tensor::empty(stream.scratch(), args.a.shape(), type, "fp8_gemm a"),
          Tensor::empty(stream.scratch(), args.b.shape(), type, "fp8_gemm b")};
}

// Both formats' numbers are exact in bf16 and f16.
void fp8_gemm(const Fp8GemmArgs& args, Stream& stream) {
  const auto [a, b] = fp8_gemm_scratch(args, stream);
  decode_all(args.a, args.a_format, a, stream);
  decode_all(args.b, args.b_format, b, stream);
  gemm({.a = a,
        .b = b,
        .out = args.out,
        .transpose_b = true,
        .beta = args.beta,
        .bias = args.bias,
        .a_scale = args.a_scale,
        .b_scale = args.b_scale},
       stream);
}

}  // namespace megatron::kernels::cpu
