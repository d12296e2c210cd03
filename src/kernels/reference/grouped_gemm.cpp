#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
void multiply(const GroupedGemmArgs& args, Stream& stream) {
  const std::vector<C> a = load<C>(args.a), bias = load<C>(args.bias);
  const std::vector<C> b = load<C>(args.transpose_b ? args.b.transpose(1, 2) : args.b);  // [G,K,N]
  const std::vector<int64_t> offsets = load_integers(args.offsets);
  const C factor = product_factor<C>(args.a_scale, args.b_scale);
  const int64_t depth = args.a.size(1), columns = args.out.size(1);
  std::vector<C> out(static_cast<size_t>(args.out.elements()));
  for (int64_t g = 0; g < args.b.size(0); ++g) {
    const int64_t begin = offsets[static_cast<size_t>(g)],
                  end = offsets[static_cast<size_t>(g) + 1];
    for_rows(stream, end - begin, 16, [&](int64_t row) {
      const int64_t r = begin + row;
      C* sums = out.data() + r * columns;
      for (int64_t p = 0; p < depth; ++p)
        for (int64_t n = 0; n < columns; ++n)
          sums[n] += a[r * depth + p] * b[(g * depth + p) * columns + n];
      for (int64_t n = 0; n < columns; ++n) sums[n] *= factor;
      if (bias.empty()) return;
      for (int64_t n = 0; n < columns; ++n) sums[n] += bias[g * columns + n];
    });
  }
  store(args.out, out);
}

template <class C>
void differentiate(const GroupedGradientArgs& args) {
  const std::vector<C> dy = load<C>(args.dy), x = load<C>(args.x);
  const std::vector<int64_t> offsets = load_integers(args.offsets);
  const Tensor& to = args.dw.out;
  const int64_t m = args.dy.size(1), n = args.x.size(1);
  std::vector<C> dw(static_cast<size_t>(to.elements())), dbias(to.size(0) * m);
  for (int64_t g = 0; g < to.size(0); ++g) {
    for (int64_t r = offsets[static_cast<size_t>(g)]; r < offsets[static_cast<size_t>(g) + 1];
         ++r) {
      for (int64_t i = 0; i < m; ++i) {
        dbias[g * m + i] += dy[r * m + i];
        for (int64_t j = 0; j < n; ++j) dw[(g * m + i) * n + j] += dy[r * m + i] * x[r * n + j];
      }
    }
  }
  for (C& sum : dw) sum *= product_factor<C>(args.dy_scale, args.x_scale);
  store_sum(args.dw, std::move(dw));
  store_sum(args.dbias, std::move(dbias));
}

}  // namespace

void grouped_gemm(const GroupedGemmArgs& args, Stream& stream) {
  args.a.dtype() == DType::f64 ? multiply<double>(args, stream) : multiply<float>(args, stream);
}

void grouped_gradient(const GroupedGradientArgs& args, Stream&) {
  args.dy.dtype() == DType::f64 ? differentiate<double>(args) : differentiate<float>(args);
}

}  // namespace megatron::kernels::reference
