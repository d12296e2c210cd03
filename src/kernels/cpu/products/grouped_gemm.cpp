#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/products/problem.h"
#include "kernels/cpu/rows_ahead.h"

namespace megatron::kernels::cpu {

namespace {

const int32_t* checked(const Tensor& offsets, int64_t rows) {
  const auto cuts = offsets.span<int32_t>();
  MG_ASSERT(cuts.front() == 0 && cuts.back() <= rows && std::ranges::is_sorted(cuts));
  return cuts.data();
}

template <class T>
T* begin_of(const Tensor& t) {
  return t.elements() == 0 ? nullptr : static_cast<T*>(t.raw());
}

void clear_rows(const Tensor& t, int64_t first, Stream& stream) {
  const int64_t bytes = t.size(1) * size_of(t.dtype());
  auto* out = begin_of<std::byte>(t);
  for_blocks(stream, t.size(0) - first, rows_per_block(t.size(1)), [&](int64_t begin, int64_t end) {
    if (bytes > 0)
      std::memset(out + (first + begin) * bytes, 0, static_cast<size_t>((end - begin) * bytes));
  });
}

// Adds a range of columns, over the rows of each group in ascending order.
template <class T, class Sum>
void add_columns(const GroupedGradientArgs& args, Stream& stream) {
  constexpr int64_t kColumns = 64;
  const int64_t width = args.dy.size(1), pieces = ceil_div(width, kColumns);
  const int32_t* cuts = args.offsets.data<int32_t>();
  const T* dy = begin_of<const T>(args.dy);
  Sum* out = begin_of<Sum>(args.dbias.out);
  stream.pool().parallel_for(args.dbias.out.size(0) * pieces, [&](int64_t index, int) {
    const int64_t g = index / pieces, first = index % pieces * kColumns;
    const int64_t n = std::min(kColumns, width - first);
    Sum sums[kColumns] = {};
    for (int64_t r = cuts[g]; r < cuts[g + 1]; ++r) {
      const T* row = dy + r * width + first;
      for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<Sum>(row[i]);
    }
    Sum* to = out + g * width + first;
    for (int64_t i = 0; i < n; ++i) to[i] = args.dbias.beta != 0 ? sums[i] + to[i] : sums[i];
  });
}

}  // namespace

void grouped_gemm(const GroupedGemmArgs& args, Stream& stream) {
  const DType type = args.a.dtype();
  if (type == DType::f16) refuse_type("grouped_gemm", type);
  Problem p;
  p.batch = args.b.size(0);
  p.m = args.a.size(0);
  p.k = p.lda = args.a.size(1);
  p.n = p.ldc = args.out.size(1);
  p.ldb = args.b.size(2);
  p.batch_b = p.n * p.k;
  p.batch_bias = p.n;
  p.a = begin_of<const std::byte>(args.a);
  p.b = begin_of<const std::byte>(args.b);
  p.out = begin_of<std::byte>(args.out);
  if (args.bias.defined()) p.bias = begin_of<const std::byte>(args.bias);
  p.transpose_b = args.transpose_b;
  p.in = p.result = p.bias_type = type;
  p.factor = product_factor(args.a_scale, args.b_scale);
  p.row_cuts = checked(args.offsets, p.m);
  compute(p, stream);
  clear_rows(args.out, p.row_cuts[p.batch], stream);
}

void grouped_gradient(const GroupedGradientArgs& args, Stream& stream) {
  const DType type = args.dy.dtype();
  if (type == DType::f16) refuse_type("grouped_gradient", type);
  Problem p;
  p.batch = args.dw.out.size(0);
  p.k = args.dy.size(0);
  p.m = p.lda = args.dy.size(1);
  p.n = p.ldb = p.ldc = args.x.size(1);
  p.batch_c = p.m * p.n;
  p.a = begin_of<const std::byte>(args.dy);
  p.b = begin_of<const std::byte>(args.x);
  p.out = begin_of<std::byte>(args.dw.out);
  p.transpose_a = true;
  p.accumulate = args.dw.beta == 1;
  p.in = type;
  p.result = args.dw.out.dtype();
  p.factor = product_factor(args.dy_scale, args.x_scale);
  p.depth_cuts = checked(args.offsets, p.k);
  compute(p, stream);
  if (!args.dbias.out.defined()) return;
  if (type == DType::f64) return add_columns<double, double>(args, stream);
  if (type == DType::f32) return add_columns<float, float>(args, stream);
  add_columns<bf16, float>(args, stream);
}

}  // namespace megatron::kernels::cpu
