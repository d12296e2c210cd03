#include "kernels/fp8_gemm.h"

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

std::vector<float> decoded(const Tensor& codes, LowFormat format) {
  std::vector<float> values;
  for (const int64_t code : load_integers(codes))
    values.push_back(decode(format, static_cast<uint8_t>(code)));
  return values;
}

}  // namespace

void fp8_gemm(const Fp8GemmArgs& args, Stream& stream) {
  const std::vector<float> a = decoded(args.a, args.a_format), b = decoded(args.b, args.b_format),
                           bias = load<float>(args.bias);
  const auto factor = product_factor<float>(args.a_scale, args.b_scale);
  const int64_t rows = args.out.size(0), columns = args.out.size(1), depth = args.a.size(1);
  std::vector<float> out(static_cast<size_t>(args.out.elements()));
  for_rows(stream, rows, 16, [&](int64_t i) {
    for (int64_t j = 0; j < columns; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < depth; ++k) sum += a[i * depth + k] * b[j * depth + k];
      out[i * columns + j] = sum * factor + (bias.empty() ? 0 : bias[j]);
    }
  });
  store_sum({args.out, args.beta}, std::move(out));
}

}  // namespace megatron::kernels::reference
