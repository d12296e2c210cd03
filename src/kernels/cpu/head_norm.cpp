#include <cmath>
#include <numeric>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/head_norm.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// Prefetch distance. Heads are parts of wider rows, which the hardware prefetcher cannot predict.
inline constexpr int64_t kBytesAhead = 4096;

// Addresses of the rows [t,g,:] of a tensor [T,G,W].
template <class T>
struct Rows {
  explicit Rows(const Tensor& tensor)
      : data(tensor.data<T>()), token(tensor.stride(0)), head(tensor.stride(1)) {
    const int64_t bytes = tensor.size(1) * tensor.size(2) * static_cast<int64_t>(sizeof(T));
    ahead = ceil_div(kBytesAhead, std::max<int64_t>(1, bytes)) * token;
  }
  T* at(int64_t t, int64_t g) const { return data + t * token + g * head; }
  T* data;
  int64_t token, head;
  int64_t ahead;  // distance in elements of what is prefetched
};

template <class T>
Output<T> output_rows(const Tensor& out, std::initializer_list<const void*> inputs) {
  return output_of<T>(out, std::gcd(out.stride(0), out.stride(1)), inputs);
}

// weight_offset + weight; 1 if there is no weight.
template <class T>
class Factors {
 public:
  Factors(const Tensor& weight, double offset)
      : weight_(data_or_null<T>(weight)), offset_(set(static_cast<float>(offset))) {}
  template <class N>
  HWY_INLINE VectorPair at(int64_t i, N n) const {
    if (weight_ == nullptr) return {set(1.0f), set(1.0f)};
    const VectorPair w = load_pair(weight_ + i, n);
    return {hn::Add(w.a, offset_), hn::Add(w.b, offset_)};
  }

 private:
  const T* weight_;
  V offset_;
};

HWY_INLINE VectorPair product_of(VectorPair a, VectorPair b) {
  return {hn::Mul(a.a, b.a), hn::Mul(a.b, b.b)};
}
HWY_INLINE VectorPair less(VectorPair v, V mean) {
  return {hn::Sub(v.a, mean), hn::Sub(v.b, mean)};
}
HWY_INLINE VectorPair times(VectorPair v, V factor) {
  return {hn::Mul(v.a, factor), hn::Mul(v.b, factor)};
}

template <class T>
class HeadNorm {
 public:
  explicit HeadNorm(const HeadNormArgs& args)
      : width_(args.x.size(2)),
        row_width_(static_cast<float>(args.squares.defined() ? args.row_width : width_)),
        eps_(static_cast<float>(args.eps)),
        x_(args.x),
        out_(output_rows<T>(args.out, {args.x.raw()})),
        out_token_(args.out.stride(0)),
        out_head_(args.out.stride(1)),
        factors_(args.weight, args.weight_offset),
        bias_(data_or_null<T>(args.bias)),
        squares_(data_or_null<float>(args.squares)),
        mean_(args.kind == NormKind::layer ? args.mean.data<float>() : nullptr),
        rstd_(args.rstd.data<float>()) {}

  // Normalizes head g of token t; `row` is its row in the statistics.
  HWY_INLINE void norm(int64_t t, int64_t g, int64_t row) const {
    const T* x = x_.at(t, g);
    const T* ahead = x + x_.ahead;
    V mean = hn::Zero(kFloats);
    if (mean_ != nullptr) {
      mean_[row] = sum_of_twos<T>(width_, [&](int64_t i, auto n) { return load_pair(x + i, n); }) /
                   row_width_;
      mean = set(mean_[row]);
    }
    const auto square = [&](int64_t i, auto n) {
      const VectorPair centered = less(load_pair(x + i, n), mean);
      return product_of(centered, centered);
    };
    const float squares = squares_ != nullptr ? squares_[row] : sum_of_twos<T>(width_, square);
    rstd_[row] = 1.0f / std::sqrt(squares / row_width_ + eps_);
    const V scale = set(rstd_[row]);
    const Output<T> out = out_ + (t * out_token_ + g * out_head_);
    for_pairs(0, width_, [&](int64_t i, auto n) {
      prefetch(ahead + i, kPairBytes<T>);
      VectorPair v = product_of(times(less(load_pair(x + i, n), mean), scale), factors_.at(i, n));
      if (bias_ != nullptr) {
        const VectorPair b = load_pair(bias_ + i, n);
        v = {hn::Add(v.a, b.a), hn::Add(v.b, b.b)};
      }
      store_pair(v, out + i, n);
    });
  }

 private:
  int64_t width_;
  float row_width_, eps_;
  Rows<T> x_;
  Output<T> out_;
  int64_t out_token_, out_head_;
  Factors<T> factors_;
  const T* bias_;
  const float* squares_;
  float *mean_, *rstd_;
};

void norm_heads(const HeadNormArgs& args, Stream& stream) {
  const int64_t heads = args.x.size(1);
  for_storage_type("head_norm", args.x.dtype(), [&](auto type) {
    for_blocks(stream, args.x.size(0), rows_per_block(heads * args.x.size(2)),
               [&](int64_t begin, int64_t end) {
                 const HeadNorm<decltype(type)> rows(args);
                 for (int64_t t = begin; t < end; ++t)
                   for (int64_t g = 0; g < heads; ++g) rows.norm(t, g, t * heads + g);
               });
  });
}

// xhat = (x - mean) rstd, g = dout factor: dx = rstd (g - mean(g) - xhat mean(g xhat)).
template <class T>
class HeadNormBackward {
 public:
  explicit HeadNormBackward(const HeadNormBackwardArgs& args)
      : width_(args.x.size(2)),
        row_width_(static_cast<float>(args.products.defined() ? args.row_width : width_)),
        x_(args.x),
        dout_(args.dout),
        dx_(output_rows<T>(args.dx, {args.x.raw(), args.dout.raw()})),
        dx_token_(args.dx.stride(0)),
        dx_head_(args.dx.stride(1)),
        factors_(args.weight, args.weight_offset),
        products_(data_or_null<float>(args.products)),
        mean_(args.kind == NormKind::layer ? args.mean.data<float>() : nullptr),
        rstd_(args.rstd.data<float>()) {}

  // Processes head g of token t; `row` is its row in the statistics. Adds to the sums dweight and
  // dbias [W], each of which may be null.
  HWY_INLINE void norm(int64_t t, int64_t g, int64_t row, float* dweight, float* dbias) const {
    const T *x = x_.at(t, g), *dout = dout_.at(t, g);
    const V mean = set(mean_ != nullptr ? mean_[row] : 0.0f);
    const float rstd = rstd_[row];
    const V scale = set(rstd);
    const auto normed = [&](int64_t i, auto n) {
      return times(less(load_pair(x + i, n), mean), scale);
    };
    // dout counts as 0 beyond the row's end.
    const TwoSums sums = two_sums_of_twos<T>(width_, [&](int64_t i, auto n) {
      prefetch(x + x_.ahead + i, kPairBytes<T>);
      const VectorPair xhat = normed(i, n), d = load_pair(dout + i, n),
                       gradient = product_of(d, factors_.at(i, n));
      if (dweight != nullptr) {
        const VectorPair old = load_pair_for<T>(dweight + i, n);
        store_pair_for<T>({hn::MulAdd(d.a, xhat.a, old.a), hn::MulAdd(d.b, xhat.b, old.b)},
                          dweight + i, n);
      }
      if (dbias != nullptr) {
        const VectorPair old = load_pair_for<T>(dbias + i, n);
        store_pair_for<T>({hn::Add(d.a, old.a), hn::Add(d.b, old.b)}, dbias + i, n);
      }
      return TwoTerms{gradient, product_of(gradient, xhat)};
    });
    const V mean_g = set(mean_ != nullptr ? sums.a / row_width_ : 0.0f);
    const V mean_gx =
        set(products_ != nullptr ? products_[row] * rstd / row_width_ : sums.b / row_width_);
    const Output<T> dx = dx_ + (t * dx_token_ + g * dx_head_);
    for_pairs(0, width_, [&](int64_t i, auto n) {
      prefetch(dout + dout_.ahead + i, kPairBytes<T>);
      const VectorPair xhat = normed(i, n),
                       gradient = product_of(load_pair(dout + i, n), factors_.at(i, n));
      const auto slope = [&](V of, V at) {
        return hn::Mul(scale, hn::Sub(hn::Sub(of, mean_g), hn::Mul(at, mean_gx)));
      };
      store_pair({slope(gradient.a, xhat.a), slope(gradient.b, xhat.b)}, dx + i, n);
    });
  }

 private:
  int64_t width_;
  float row_width_;
  Rows<T> x_, dout_;
  Output<T> dx_;
  int64_t dx_token_, dx_head_;
  Factors<T> factors_;
  const float *products_, *mean_, *rstd_;
};

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
    for_blocks(stream, blocks.rows, blocks.height, [&](int64_t begin, int64_t end) {
      const HeadNormBackward<decltype(type)> rows(args);
      float* dweight = partial(scratch.dweights, begin);
      float* dbias = partial(scratch.dbiases, begin);
      for (int64_t t = begin; t < end; ++t)
        for (int64_t g = 0; g < heads; ++g) rows.norm(t, g, t * heads + g, dweight, dbias);
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
    const auto dot = [&](const T* x, const T* y) {
      return sum_of_twos<T>(width, [&](int64_t i, auto n) {
        prefetch(x + a.ahead + i, kPairBytes<T>);
        prefetch(y + b.ahead + i, kPairBytes<T>);
        return product_of(product_of(load_pair(x + i, n), load_pair(y + i, n)), factors.at(i, n));
      });
    };
    for_blocks(stream, args.a.size(0), rows_per_block(heads * width),
               [&](int64_t begin, int64_t end) {
                 for (int64_t t = begin; t < end; ++t)
                   for (int64_t g = 0; g < heads; ++g)
                     out[t * heads + g] = dot(a.at(t, g), b.at(t, g));
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
  HWY_DYNAMIC_DISPATCH(norm_heads)(args, stream);
}
void head_norm_backward(const HeadNormBackwardArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(norm_heads_backward)(args, stream);
}
void row_dot(const RowDotArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(dot_rows)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
