#include <cmath>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

// weight_offset + weight for each of `width` columns.
template <class C>
std::vector<C> factors(const Tensor& weight, double offset, int64_t width) {
  if (!weight.defined()) return std::vector<C>(width, C{1});
  std::vector<C> values = load<C>(weight);
  for (C& value : values) value += static_cast<C>(offset);
  return values;
}

template <class C>
void normalise(const HeadNormArgs& args) {
  const std::vector<C> x = load<C>(args.x), bias = load<C>(args.bias),
                       squares = load<C>(args.squares);
  const int64_t rows = args.x.size(0) * args.x.size(1), width = args.x.size(2);
  const std::vector<C> factor = factors<C>(args.weight, args.weight_offset, width);
  const bool layer = args.kind == NormKind::layer;
  std::vector<C> out(x.size()), means(layer ? rows : 0), rstds(rows);
  for (int64_t r = 0; r < rows; ++r) {
    const C* row = x.data() + r * width;
    C mean = 0, sum = 0;
    for (int64_t i = 0; i < width && layer; ++i) mean += row[i] / static_cast<C>(width);
    for (int64_t i = 0; i < width; ++i) sum += (row[i] - mean) * (row[i] - mean);
    const C mean_square =
        squares.empty() ? sum / static_cast<C>(width) : squares[r] / static_cast<C>(args.row_width);
    rstds[r] = 1 / std::sqrt(mean_square + static_cast<C>(args.eps));
    if (layer) means[r] = mean;
    for (int64_t i = 0; i < width; ++i) {
      out[r * width + i] = (row[i] - mean) * rstds[r] * factor[i] + (bias.empty() ? 0 : bias[i]);
    }
  }
  store(args.out, out);
  store(args.rstd, rstds);
  if (layer) store(args.mean, means);
}

template <class C>
void differentiate(const HeadNormBackwardArgs& args) {
  const std::vector<C> x = load<C>(args.x), dout = load<C>(args.dout), means = load<C>(args.mean),
                       rstds = load<C>(args.rstd), products = load<C>(args.products);
  const int64_t rows = args.x.size(0) * args.x.size(1), width = args.x.size(2);
  const std::vector<C> factor = factors<C>(args.weight, args.weight_offset, width);
  const bool layer = args.kind == NormKind::layer;
  std::vector<C> dx(x.size()), dweight(width), dbias(width);
  for (int64_t r = 0; r < rows; ++r) {
    const auto xhat = [&](int64_t i) {
      return (x[r * width + i] - (layer ? means[r] : 0)) * rstds[r];
    };
    C mean_g = 0, mean_gx = 0;
    for (int64_t i = 0; i < width; ++i) {
      const C d = dout[r * width + i], g = d * factor[i];
      mean_g += g / static_cast<C>(width);
      mean_gx += g * xhat(i) / static_cast<C>(width);
      dweight[i] += d * xhat(i);
      dbias[i] += d;
    }
    if (!layer) mean_g = 0;
    if (!products.empty()) mean_gx = products[r] * rstds[r] / static_cast<C>(args.row_width);
    for (int64_t i = 0; i < width; ++i)
      dx[r * width + i] = rstds[r] * (dout[r * width + i] * factor[i] - mean_g - xhat(i) * mean_gx);
  }
  store(args.dx, dx);
  store_sum(args.dweight, std::move(dweight));
  store_sum(args.dbias, std::move(dbias));
}

template <class C>
void dot(const RowDotArgs& args) {
  const std::vector<C> a = load<C>(args.a), b = load<C>(args.b);
  const int64_t rows = args.a.size(0) * args.a.size(1), width = args.a.size(2);
  const std::vector<C> factor = factors<C>(args.weight, args.weight_offset, width);
  std::vector<C> out(rows);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < width; ++i) out[r] += a[r * width + i] * b[r * width + i] * factor[i];
  store(args.out, out);
}

}  // namespace

void head_norm(const HeadNormArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? normalise<double>(args) : normalise<float>(args);
}

void head_norm_backward(const HeadNormBackwardArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? differentiate<double>(args) : differentiate<float>(args);
}

void row_dot(const RowDotArgs& args, Stream&) {
  args.a.dtype() == DType::f64 ? dot<double>(args) : dot<float>(args);
}

}  // namespace megatron::kernels::reference
