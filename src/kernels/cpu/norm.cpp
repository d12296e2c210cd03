#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE VectorPair squares_of(VectorPair v) { return {hn::Mul(v.a, v.a), hn::Mul(v.b, v.b)}; }
// Factors of a norm: weight_offset + weight.
template <class T, class N>
HWY_INLINE VectorPair load_factors(const T* weight, V offset, N n) {
  const VectorPair w = load_pair(weight, n);
  return {hn::Add(w.a, offset), hn::Add(w.b, offset)};
}
HWY_INLINE VectorPair minus(VectorPair v, V mean) {
  return {hn::Sub(v.a, mean), hn::Sub(v.b, mean)};
}

// Rows of up to this many elements fit the L1 cache twice.
constexpr int64_t kLongestKeptRow = 4096;

// Copies the two vectors at `from` with streaming stores.
template <class T>
HWY_INLINE void copy_two(const T* from, Output<T> to, Whole) {
  const hn::ScalableTag<uint8_t> bytes;
  constexpr int64_t kBytes = hn::MaxLanes(bytes);
  const auto* source = reinterpret_cast<const uint8_t*>(from);
  auto* target = reinterpret_cast<uint8_t*>(to.p);
  for (int64_t i = 0; i < kPairBytes<T>; i += kBytes)
    hn::Stream(hn::LoadU(bytes, source + i), bytes, target + i);
}
template <class T>
HWY_INLINE void copy_two(const T* from, Output<T> to, Part part) {
  std::memcpy(to.p, from, static_cast<size_t>(part.n) * sizeof(T));
}

// sum = x + residual in the storage type. Returns the sum of terms(sum).
template <class T, class F>
float add_row(const T* x, const T* residual, T* sum, int64_t width, F terms) {
  return sum_of_twos<T>(width, [&](int64_t i, auto n) {
    const VectorPair a = load_pair(x + i, n), b = load_pair(residual + i, n);
    const VectorPair v{hn::Add(a.a, b.a), hn::Add(a.b, b.b)};
    store_pair(v, sum + i, n);
    return terms(as_stored<T>(v));
  });
}

template <class T>
void norm_rows(const AddNormArgs& args, NormKind kind, int64_t begin, int64_t end) {
  const int64_t width = args.x.size(1);
  const T* weight = args.weight.data<T>();
  const V offset = set(static_cast<float>(args.weight_offset));
  const T* bias = data_or_null<T>(args.bias);
  const T* residual = data_or_null<T>(args.residual);
  T* sum = args.sum.defined() ? args.sum.data<T>() : nullptr;
  const Output<T> normed = output_of<T>(args.normed, width, {args.x.raw(), residual, sum});
  // The sum is read again. If it is streamed, a copy of the row is kept for that.
  const bool keeps_row = residual != nullptr && width <= kLongestKeptRow &&
                         is_streamed(args.sum, width, {args.x.raw(), residual, args.normed.raw()});
  alignas(64) T kept[kLongestKeptRow];
  float* rstds = args.rstd.data<float>();
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * width;
    const T* s = args.x.data<T>() + at;
    // First pass over a row: adds the residual if there is one.
    const auto sum_of_row = [&](auto terms) {
      if (residual != nullptr) {
        const T* x = s;
        T* row_sum = keeps_row ? kept : sum + at;
        s = row_sum;
        return add_row(x, residual + at, row_sum, width, terms);
      }
      if (sum != nullptr && sum + at != s)
        std::memcpy(sum + at, s, static_cast<size_t>(width) * sizeof(T));
      return sum_of_twos<T>(width, [&](int64_t i, auto n) { return terms(load_pair(s + i, n)); });
    };
    V mean = hn::Zero(kFloats);
    float squares = 0;
    if (kind == NormKind::layer) {
      const float total = sum_of_row([](VectorPair v) { return v; });
      args.mean.data<float>()[row] = total / static_cast<float>(width);
      mean = set(args.mean.data<float>()[row]);
      squares = sum_of_twos<T>(
          width, [&](int64_t i, auto n) { return squares_of(minus(load_pair(s + i, n), mean)); });
    } else {
      squares = sum_of_row([](VectorPair v) { return squares_of(v); });
    }
    rstds[row] =
        1.0f / std::sqrt(squares / static_cast<float>(width) + static_cast<float>(args.eps));
    const V rstd = set(rstds[row]);
    const Output<T> out = normed + at;
    for_pairs(0, width, [&](int64_t i, auto n) {
      if constexpr (std::is_same_v<T, float>) {  // in bf16, prefetching is slower
        prefetch(args.x.data<T>() + at + width + i, kPairBytes<T>);
        if (residual != nullptr) prefetch(residual + at + width + i, kPairBytes<T>);
      }
      if (keeps_row) copy_two(s + i, Output<T>{sum + at + i, true}, n);
      const VectorPair centered = minus(load_pair(s + i, n), mean),
                       w = load_factors(weight + i, offset, n);
      VectorPair v{hn::Mul(hn::Mul(centered.a, rstd), w.a),
                   hn::Mul(hn::Mul(centered.b, rstd), w.b)};
      if (bias != nullptr) {
        const VectorPair b = load_pair(bias + i, n);
        v = {hn::Add(v.a, b.a), hn::Add(v.b, b.b)};
      }
      store_pair(v, out + i, n);
    });
  }
}

void norm_forward(const AddNormArgs& args, NormKind kind, Stream& stream) {
  for_storage_type("add_norm", args.x.dtype(), [&](auto type) {
    for_blocks(
        stream, args.x.size(0), rows_per_block(args.x.size(1)),
        [&](int64_t begin, int64_t end) { norm_rows<decltype(type)>(args, kind, begin, end); });
  });
}

// xhat = (sum - mean) rstd, g = dnormed weight: dsum = rstd (g - mean(g) - xhat mean(g xhat)) +
// dsum_in, where mean(g) is 0 for RMSNorm. dweight and dbias [H] receive this block's sums of
// dnormed xhat and of dnormed.
template <class T>
void norm_rows_backward(const AddNormBackwardArgs& args, NormKind kind, int64_t begin, int64_t end,
                        float* dweight, float* dbias) {
  const int64_t width = args.sum.size(1);
  const T* weight = args.weight.data<T>();
  const V offset = set(static_cast<float>(args.weight_offset));
  const T* dsum_in = data_or_null<T>(args.dsum_in);
  const Output<T> dsum =
      output_of<T>(args.dsum, width, {args.sum.raw(), args.dnormed.raw(), dsum_in});
  const float per_element = 1.0f / static_cast<float>(width);
  ColumnSums<T> dweights(dweight, 0, width), dbiases(dbias, 0, dbias == nullptr ? 0 : width);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * width;
    const T* s = args.sum.data<T>() + at;
    const T* d = args.dnormed.data<T>() + at;
    const Output<T> out = dsum + at;
    const V mean = set(kind == NormKind::layer ? args.mean.data<float>()[row] : 0.0f);
    const V rstd = set(args.rstd.data<float>()[row]);
    const auto normed = [&](int64_t i, auto n) {
      const VectorPair centered = minus(load_pair(s + i, n), mean);
      return VectorPair{hn::Mul(centered.a, rstd), hn::Mul(centered.b, rstd)};
    };
    const TwoSums sums = two_sums_of_twos<T>(width, [&](int64_t i, auto n) {
      if (dsum_in != nullptr) prefetch(dsum_in + at + i, kPairBytes<T>);
      const VectorPair xhat = normed(i, n), dy = load_pair(d + i, n),
                       w = load_factors(weight + i, offset, n);
      const VectorPair g{hn::Mul(dy.a, w.a), hn::Mul(dy.b, w.b)};
      const VectorPair dw = dweights.at(i, n);
      dweights.set(i, {hn::MulAdd(dy.a, xhat.a, dw.a), hn::MulAdd(dy.b, xhat.b, dw.b)}, n);
      if (dbias != nullptr) {
        const VectorPair db = dbiases.at(i, n);
        dbiases.set(i, {hn::Add(dy.a, db.a), hn::Add(dy.b, db.b)}, n);
      }
      return TwoTerms{g, {hn::Mul(g.a, xhat.a), hn::Mul(g.b, xhat.b)}};
    });
    const V mean_g = set(kind == NormKind::layer ? sums.a * per_element : 0.0f);
    const V mean_gx = set(sums.b * per_element);
    const auto slope = [&](V dy, V w, V xhat) {
      return hn::Mul(rstd, hn::Sub(hn::Sub(hn::Mul(dy, w), mean_g), hn::Mul(xhat, mean_gx)));
    };
    for_pairs(0, width, [&](int64_t i, auto n) {
      prefetch(s + width + i, kPairBytes<T>);
      prefetch(d + width + i, kPairBytes<T>);
      const VectorPair xhat = normed(i, n), dy = load_pair(d + i, n),
                       w = load_factors(weight + i, offset, n);
      VectorPair v{slope(dy.a, w.a, xhat.a), slope(dy.b, w.b, xhat.b)};
      if (dsum_in != nullptr) {
        const VectorPair in = load_pair(dsum_in + at + i, n);
        v = {hn::Add(v.a, in.a), hn::Add(v.b, in.b)};
      }
      store_pair(v, out + i, n);
    });
  }
  dweights.in_order();
  dbiases.in_order();
}

void norm_backward(const AddNormBackwardArgs& args, NormKind kind, Stream& stream) {
  const int64_t width = args.sum.size(1);
  const RowBlocks blocks(args.sum.size(0));
  const NormPartials scratch = norm_backward_scratch(args, kind, stream);
  const Tensor &dweights = scratch.dweights, &dbiases = scratch.dbiases;
  const bool has_bias = dbiases.defined();
  for_storage_type("add_norm_backward", args.sum.dtype(), [&](auto type) {
    for_blocks(stream, blocks.rows, blocks.height, [&](int64_t begin, int64_t end) {
      const int64_t at = begin / blocks.height * width;
      float* dweight = dweights.data<float>() + at;
      float* dbias = has_bias ? dbiases.data<float>() + at : nullptr;
      norm_rows_backward<decltype(type)>(args, kind, begin, end, dweight, dbias);
    });
  });
  add_partial_rows(dweights, args.dweight, stream);
  if (has_bias) add_partial_rows(dbiases, args.dbias, stream);
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(norm_forward);
HWY_EXPORT(norm_backward);

NormPartials norm_backward_scratch(const AddNormBackwardArgs& args, NormKind kind, Stream& stream) {
  const RowBlocks blocks(args.sum.size(0));
  const int64_t width = args.sum.size(1);
  NormPartials partials{partial_rows(blocks, width, stream), {}};
  if (kind == NormKind::layer && args.dbias.out.defined())
    partials.dbiases = partial_rows(blocks, width, stream);
  return partials;
}

void add_rms_norm(const AddNormArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(norm_forward)(args, NormKind::rms, stream);
}
void add_rms_norm_backward(const AddNormBackwardArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(norm_backward)(args, NormKind::rms, stream);
}
void add_layer_norm(const AddNormArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(norm_forward)(args, NormKind::layer, stream);
}
void add_layer_norm_backward(const AddNormBackwardArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(norm_backward)(args, NormKind::layer, stream);
}

}  // namespace megatron::kernels::cpu
#endif
