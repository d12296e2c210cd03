#include "kernels/cpu/head_norm.h"

#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/head_norm.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// Where rows [t,g,:] of a tensor [T,G,W] begin.
template <class T>
struct Rows {
  explicit Rows(const Tensor& tensor)
      : data(tensor.data<T>()), token(tensor.stride(0)), head(tensor.stride(1)) {}
  T* at(int64_t t, int64_t g) const { return data + t * token + g * head; }
  T* data;
  int64_t token, head;
};

// weight_offset + weight; 1 where there is no weight.
template <class T>
class Factors {
 public:
  Factors(const Tensor& weight, double offset)
      : weight_(weight.defined() ? weight.data<T>() : nullptr),
        offset_(set(static_cast<float>(offset))) {}
  template <class N>
  HWY_INLINE Two at(int64_t i, N n) const {
    if (weight_ == nullptr) return {set(1.0f), set(1.0f)};
    const Two w = load_two(weight_ + i, n);
    return {hn::Add(w.a, offset_), hn::Add(w.b, offset_)};
  }

 private:
  const T* weight_;
  V offset_;
};

HWY_INLINE Two product_of(Two a, Two b) { return {hn::Mul(a.a, b.a), hn::Mul(a.b, b.b)}; }
HWY_INLINE Two less(Two v, V mean) { return {hn::Sub(v.a, mean), hn::Sub(v.b, mean)}; }
HWY_INLINE Two times(Two v, V factor) { return {hn::Mul(v.a, factor), hn::Mul(v.b, factor)}; }

template <class T>
void norm_head(const HeadNormArgs& args, const Factors<T>& factors, const T* x, T* out,
               int64_t row) {
  const int64_t width = args.x.size(2);
  const T* bias = args.bias.defined() ? args.bias.data<T>() : nullptr;
  V mean = hn::Zero(kFloats);
  float mean_square;
  if (args.kind == NormKind::layer) {
    float& kept = args.mean.data<float>()[row];
    kept = sum_of_twos<T>(width, [&](int64_t i, auto n) { return load_two(x + i, n); }) /
           static_cast<float>(width);
    mean = set(kept);
  }
  if (args.squares.defined()) {
    mean_square = args.squares.data<float>()[row] / static_cast<float>(args.row_width);
  } else {
    const auto square = [&](int64_t i, auto n) {
      const Two centered = less(load_two(x + i, n), mean);
      return product_of(centered, centered);
    };
    mean_square = sum_of_twos<T>(width, square) / static_cast<float>(width);
  }
  float& rstd = args.rstd.data<float>()[row];
  rstd = 1.0f / std::sqrt(mean_square + static_cast<float>(args.eps));
  const V scale = set(rstd);
  for_twos(0, width, [&](int64_t i, auto n) {
    Two v = product_of(times(less(load_two(x + i, n), mean), scale), factors.at(i, n));
    if (bias != nullptr) {
      const Two b = load_two(bias + i, n);
      v = {hn::Add(v.a, b.a), hn::Add(v.b, b.b)};
    }
    store_two(v, out + i, n);
  });
}

void norm_heads(const HeadNormArgs& args, Stream& stream) {
  const int64_t heads = args.x.size(1);
  for_storage_type("head_norm", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<T> x(args.x), out(args.out);
    const Factors<T> factors(args.weight, args.weight_offset);
    for_blocks(stream, args.x.size(0), rows_per_block(heads * args.x.size(2)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t t = begin; t < end; ++t)
                   for (int64_t g = 0; g < heads; ++g)
                     norm_head<T>(args, factors, x.at(t, g), out.at(t, g), t * heads + g);
               });
  });
}

// xhat = (x - mean) rstd, g = dout factor: dx = rstd (g - mean(g) - xhat mean(g xhat)).
template <class T>
void norm_head_backward(const HeadNormBackwardArgs& args, const Factors<T>& factors, const T* x,
                        const T* dout, T* dx, int64_t row, float* dweight, float* dbias) {
  const int64_t width = args.x.size(2);
  const bool layer = args.kind == NormKind::layer;
  const V mean = set(layer ? args.mean.data<float>()[row] : 0.0f);
  const float rstd = args.rstd.data<float>()[row];
  const V scale = set(rstd);
  const auto normed = [&](int64_t i, auto n) {
    return times(less(load_two(x + i, n), mean), scale);
  };
  // Beyond a row's end dout is 0.
  const TwoSums sums = two_sums_of_twos<T>(width, [&](int64_t i, auto n) {
    const Two xhat = normed(i, n), d = load_two(dout + i, n), g = product_of(d, factors.at(i, n));
    if (dweight != nullptr) {
      const Two old = load_two_for<T>(dweight + i, n);
      store_two_for<T>({hn::MulAdd(d.a, xhat.a, old.a), hn::MulAdd(d.b, xhat.b, old.b)},
                       dweight + i, n);
    }
    if (dbias != nullptr) {
      const Two old = load_two_for<T>(dbias + i, n);
      store_two_for<T>({hn::Add(d.a, old.a), hn::Add(d.b, old.b)}, dbias + i, n);
    }
    return TwoTerms{g, product_of(g, xhat)};
  });
  const auto of_width = static_cast<float>(width);
  const V mean_g = set(layer ? sums.a / of_width : 0.0f);
  const V mean_gx = set(args.products.defined() ? args.products.data<float>()[row] * rstd /
                                                      static_cast<float>(args.row_width)
                                                : sums.b / of_width);
  for_twos(0, width, [&](int64_t i, auto n) {
    const Two xhat = normed(i, n), g = product_of(load_two(dout + i, n), factors.at(i, n));
    const auto slope = [&](V gradient, V at) {
      return hn::Mul(scale, hn::Sub(hn::Sub(gradient, mean_g), hn::Mul(at, mean_gx)));
    };
    store_two({slope(g.a, xhat.a), slope(g.b, xhat.b)}, dx + i, n);
  });
}

void norm_heads_backward(const HeadNormBackwardArgs& args, Stream& stream) {
  const int64_t heads = args.x.size(1), width = args.x.size(2);
  const RowBlocks blocks(args.x.size(0));
  const NormPartials scratch = head_norm_backward_scratch(args, stream);
  const auto partial = [&](const Tensor& rows, int64_t begin) -> float* {
    if (!rows.defined()) return nullptr;
    float* sums = rows.data<float>() + begin / blocks.height * width;
    std::fill_n(sums, width, 0.0f);
    return sums;
  };
  for_storage_type("head_norm_backward", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<T> x(args.x), dout(args.dout), dx(args.dx);
    const Factors<T> factors(args.weight, args.weight_offset);
    for_blocks(stream, blocks.rows, blocks.height, [&](int64_t begin, int64_t end) {
      float* dweight = partial(scratch.dweights, begin);
      float* dbias = partial(scratch.dbiases, begin);
      for (int64_t t = begin; t < end; ++t)
        for (int64_t g = 0; g < heads; ++g)
          norm_head_backward<T>(args, factors, x.at(t, g), dout.at(t, g), dx.at(t, g),
                                t * heads + g, dweight, dbias);
    });
  });
  if (scratch.dweights.defined()) add_partial_rows(scratch.dweights, args.dweight, stream);
  if (scratch.dbiases.defined()) add_partial_rows(scratch.dbiases, args.dbias, stream);
}

void dot_rows(const RowDotArgs& args, Stream& stream) {
  const int64_t heads = args.a.size(1), width = args.a.size(2);
  for_storage_type("row_dot", args.a.dtype(), [&](auto type) {
    using T = decltype(type);
    float* out = args.out.data<float>();
    const Rows<T> a(args.a), b(args.b);
    const Factors<T> factors(args.weight, args.weight_offset);
    for_blocks(stream, args.a.size(0), rows_per_block(heads * width),
               [&](int64_t begin, int64_t end) {
                 for (int64_t t = begin; t < end; ++t)
                   for (int64_t g = 0; g < heads; ++g)
                     out[t * heads + g] = sum_of_twos<T>(width, [&](int64_t i, auto n) {
                       return product_of(
                           product_of(load_two(a.at(t, g) + i, n), load_two(b.at(t, g) + i, n)),
                           factors.at(i, n));
                     });
               });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(norm_heads);
HWY_EXPORT(norm_heads_backward);
HWY_EXPORT(dot_rows);

NormPartials head_norm_backward_scratch(const HeadNormBackwardArgs& args, Stream& stream) {
  const RowBlocks blocks(args.x.size(0));
  NormPartials partials;
  if (args.dweight.out.defined()) partials.dweights = partial_rows(blocks, args.x.size(2), stream);
  if (args.dbias.out.defined()) partials.dbiases = partial_rows(blocks, args.x.size(2), stream);
  return partials;
}

void head_norm(const HeadNormArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(norm_heads)(args, stream);
}
void head_norm_backward(const HeadNormBackwardArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(norm_heads_backward)(args, stream);
}
void row_dot(const RowDotArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(dot_rows)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
