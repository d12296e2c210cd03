#include <cmath>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
void add_residual(const AddNormArgs& args) {
  std::vector<C> sum = load<C>(args.x);
  const std::vector<C> residual = load<C>(args.residual);
  for (size_t i = 0; i < residual.size(); ++i) sum[i] += residual[i];
  store(args.sum, sum);
}

template <class C>
void normalise(const AddNormArgs& args, NormKind kind, Stream& stream) {
  if (args.sum.defined()) add_residual<C>(args);
  const std::vector<C> s = load<C>(args.sum.defined() ? args.sum : args.x);  // the sum as stored
  std::vector<C> weight = load<C>(args.weight);
  const std::vector<C> bias = load<C>(args.bias);
  for (C& w : weight) w += static_cast<C>(args.weight_offset);
  const int64_t rows = args.x.size(0), h = args.x.size(1);
  std::vector<C> normed(s.size()), means(kind == NormKind::layer ? rows : 0), rstds(rows);
  for_rows(stream, rows, 64, [&](int64_t t) {
    const C* x = s.data() + t * h;
    C mean = 0, variance = 0;
    if (kind == NormKind::layer) {
      for (int64_t i = 0; i < h; ++i) mean += x[i];
      mean /= static_cast<C>(h);
      means[t] = mean;
    }
    for (int64_t i = 0; i < h; ++i) variance += (x[i] - mean) * (x[i] - mean);
    variance /= static_cast<C>(h);
    const C rstd = 1 / std::sqrt(variance + static_cast<C>(args.eps));
    rstds[t] = rstd;
    for (int64_t i = 0; i < h; ++i) {
      normed[t * h + i] = (x[i] - mean) * rstd * weight[i];
      if (!bias.empty()) normed[t * h + i] += bias[i];
    }
  });
  store(args.normed, normed);
  store(args.rstd, rstds);
  if (kind == NormKind::layer) store(args.mean, means);
}

// With y = (s - mean) * rstd and g = dnormed * weight:  dsum = rstd * (g - [layer] mean(g) - y *
// mean(g * y)) + dsum_in.
template <class C>
void differentiate(const AddNormBackwardArgs& args, NormKind kind, Stream& stream) {
  const std::vector<C> dnormed = load<C>(args.dnormed), s = load<C>(args.sum);
  std::vector<C> weight = load<C>(args.weight);
  for (C& w : weight) w += static_cast<C>(args.weight_offset);
  const std::vector<C> means = load<C>(args.mean), rstds = load<C>(args.rstd);
  const int64_t rows = args.sum.size(0), h = args.sum.size(1);
  std::vector<C> dsum = args.dsum_in.defined() ? load<C>(args.dsum_in) : std::vector<C>(s.size());
  const auto y = [&](int64_t t, int64_t i) {
    return (s[t * h + i] - (means.empty() ? 0 : means[t])) * rstds[t];
  };
  for_rows(stream, rows, 64, [&](int64_t t) {
    C mean_g = 0, mean_gy = 0;
    for (int64_t i = 0; i < h; ++i) {
      const C g = dnormed[t * h + i] * weight[i];
      mean_g += g;
      mean_gy += g * y(t, i);
    }
    mean_g = kind == NormKind::layer ? mean_g / static_cast<C>(h) : 0;
    mean_gy /= static_cast<C>(h);
    for (int64_t i = 0; i < h; ++i) {
      dsum[t * h + i] += rstds[t] * (dnormed[t * h + i] * weight[i] - mean_g - y(t, i) * mean_gy);
    }
  });
  std::vector<C> dweight(h), dbias(h);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < h; ++i) {
      dweight[i] += dnormed[t * h + i] * y(t, i);
      dbias[i] += dnormed[t * h + i];
    }
  }
  store(args.dsum, dsum);
  store_sum(args.dweight, std::move(dweight));
  store_sum(args.dbias, std::move(dbias));
}

void forward(const AddNormArgs& args, NormKind kind, Stream& stream) {
  args.x.dtype() == DType::f64 ? normalise<double>(args, kind, stream)
                               : normalise<float>(args, kind, stream);
}

void backward(const AddNormBackwardArgs& args, NormKind kind, Stream& stream) {
  args.sum.dtype() == DType::f64 ? differentiate<double>(args, kind, stream)
                                 : differentiate<float>(args, kind, stream);
}

}  // namespace

void add_rms_norm(const AddNormArgs& args, Stream& stream) { forward(args, NormKind::rms, stream); }
void add_layer_norm(const AddNormArgs& args, Stream& stream) {
  forward(args, NormKind::layer, stream);
}
void add_rms_norm_backward(const AddNormBackwardArgs& args, Stream& stream) {
  backward(args, NormKind::rms, stream);
}
void add_layer_norm_backward(const AddNormBackwardArgs& args, Stream& stream) {
  backward(args, NormKind::layer, stream);
}

}  // namespace megatron::kernels::reference
