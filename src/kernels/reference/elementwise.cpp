#include <algorithm>
#include <array>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
void add_typed(const AddArgs& args) {
  std::vector<C> sum = load<C>(args.a);
  const std::vector<C> b = load<C>(args.b);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i % b.size()];
  store(args.out, sum);
}

template <class C>
void column_sum_typed(const ColumnSumArgs& args) {
  const std::vector<C> x = load<C>(args.x);
  const int64_t rows = args.x.size(0), n = args.x.size(1);
  std::vector<C> sum(n);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < n; ++i) sum[i] += x[t * n + i];
  }
  store_sum(args.out, std::move(sum));
}

}  // namespace

void add(const AddArgs& args, Stream&) {
  const bool wide = args.a.dtype() == DType::f64 || args.b.dtype() == DType::f64 ||
                    args.out.dtype() == DType::f64;
  wide ? add_typed<double>(args) : add_typed<float>(args);
}

void copy(const CopyArgs& args, Stream&) {
  if (!is_floating(args.x.dtype())) return store_integers(args.out, load_integers(args.x));
  store(args.out, load<double>(args.x));
}

void fill(const FillArgs& args, Stream&) {
  const auto n = static_cast<size_t>(args.out.elements());
  if (!is_floating(args.out.dtype())) {
    return store_integers(args.out, std::vector<int64_t>(n, static_cast<int64_t>(args.value)));
  }
  store(args.out, std::vector<double>(n, args.value));
}

void column_sum(const ColumnSumArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? column_sum_typed<double>(args) : column_sum_typed<float>(args);
}

void sum(const SumArgs& args, Stream&) {
  const std::vector<double> x = load<double>(args.x), weights = load<double>(args.weights);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += weights.empty() ? x[i] : weights[i] * x[i];
  store(args.out, std::vector<double>{sum});
}

void sum_of_squares(const SumOfSquaresArgs& args, Stream& stream) {
  const std::vector<double> x = load<double>(args.x);
  std::vector<double> partial(args.partial.elements());
  for_rows(stream, args.partial.elements(), 1, [&](int64_t block) {
    std::array<double, 8> s{};
    const auto begin = static_cast<size_t>(block * kNormBlock);
    const size_t end = std::min(x.size(), begin + static_cast<size_t>(kNormBlock));
    for (size_t i = begin; i < end; ++i) s[(i - begin) % 8] += x[i] * x[i];
    partial[block] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  });
  store(args.partial, partial);
}

}  // namespace megatron::kernels::reference
