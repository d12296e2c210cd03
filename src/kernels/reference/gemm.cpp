#include "kernels/reference/elements.h"
#include "kernels/reference/gelu.h"
#include "kernels/reference/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {
namespace {

// Column sums of a [K,M], adding rows in order.
template <class C>
void sum_columns(const Tensor& a, const Accumulate& to) {
  const std::vector<C> values = load<C>(a);
  const int64_t rows = a.size(0), columns = a.size(1);
  std::vector<C> sums(columns);
  for (int64_t k = 0; k < rows; ++k)
    for (int64_t m = 0; m < columns; ++m) sums[m] += values[k * columns + m];
  store_sum(to, std::move(sums));
}

template <class C>
void apply(const GemmArgs& args, std::vector<C>& out) {
  if (args.epilogue == Epilogue::gelu) {
    if (args.aux.defined()) store(args.aux, out);
    for (C& x : out) x = gelu_tanh(x).value;
  } else if (args.epilogue == Epilogue::gelu_gradient) {
    const std::vector<C> aux = load<C>(args.aux);
    for (size_t i = 0; i < out.size(); ++i) out[i] *= gelu_tanh(aux[i]).slope;
  }
}

template <class C>
void multiply(const GemmArgs& args, Stream& stream) {
  const std::vector<C> a =
      load<C>(args.transpose_a ? args.a.transpose(-2, -1) : args.a);  // [G,M,K]
  const std::vector<C> b =
      load<C>(args.transpose_b ? args.b.transpose(-2, -1) : args.b);  // [G,K,N]
  const std::vector<C> bias = load<C>(args.bias);
  const bool batched = args.out.rank() == 3;
  const int64_t groups = batched ? args.out.size(0) : 1;
  const int64_t m = args.out.size(-2), n = args.out.size(-1);
  const int64_t k = args.transpose_a ? args.a.size(-2) : args.a.size(-1);
  const C factor = product_factor<C>(args.a_scale, args.b_scale);
  std::vector<C> out = args.beta == 0 ? std::vector<C>(args.out.elements()) : load<C>(args.out);
  for_rows(stream, groups * m, 16, [&](int64_t row) {
    const C* b_group = b.data() + row / m * k * n;
    C* out_row = out.data() + row * n;
    std::vector<C> sum(n);
    for (int64_t p = 0; p < k; ++p) {
      const C x = a[row * k + p];
      for (int64_t j = 0; j < n; ++j) sum[j] += x * b_group[p * n + j];
    }
    for (C& s : sum) s *= factor;
    for (int64_t j = 0; j < n; ++j) out_row[j] += bias.empty() ? sum[j] : sum[j] + bias[j];
  });
  apply(args, out);
  store(args.out, out);
  if (args.bias_gradient.out.defined()) sum_columns<C>(args.a, args.bias_gradient);
}

}  // namespace

void gemm(const GemmArgs& args, Stream& stream) {
  args.a.dtype() == DType::f64 || args.double_sums ? multiply<double>(args, stream)
                                                   : multiply<float>(args, stream);
}

}  // namespace megatron::kernels::reference
