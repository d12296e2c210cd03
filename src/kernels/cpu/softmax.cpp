#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/softmax_form.h"
#include "kernels/cpu/tanh-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t kChunk = 2048;  // elements whose exponentials are kept

// Row of which the keys [begin, end) are seen, at least one; gives lse. p may be s.
template <bool capped, class T>
float softmax_seen_as(const T* s, Output<T> p, int64_t keys, int64_t begin, int64_t end,
                      const SoftmaxForm<float>& form) {
  const V factor = set(form.scale), lowest = set(-std::numeric_limits<float>::infinity());
  const auto score = [&](int64_t i, auto n) {
    const V y = hn::Mul(factor, load(s + i, n));
    return capped ? soft_capped(y, form.soft_cap) : y;
  };
  V most[2] = {lowest, lowest};
  int64_t i = begin;
  for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
    most[0] = hn::Max(most[0], score(i, Whole{}));
    most[1] = hn::Max(most[1], score(i + kLanes, Whole{}));
  }
  for_vectors(i, end, [&](int64_t j, auto n) {
    most[0] = hn::Max(most[0], keep_or(score(j, n), lowest, n));
  });
  const float top =
      std::max(hn::GetLane(hn::MaxOfLanes(kFloats, hn::Max(most[0], most[1]))), form.sink);
  const auto fill = [&](int64_t from, int64_t to) {
    for_vectors_of(p + from, to - from,
                   [&](int64_t j, auto n) { store(hn::Zero(kFloats), p + from + j, n); });
  };
  if (top == -std::numeric_limits<float>::infinity()) {
    fill(0, keys);
    return top;
  }
  const V shift = set(top);
  const auto exponential = [&](int64_t j, auto n) {
    return exp_up_to_90(hn::Sub(score(j, n), shift));
  };
  alignas(64) float kept[kChunk];
  const bool keeps = end - begin <= kChunk;
  float sum = sum_of(end - begin, [&](int64_t j, auto n) {
    const V e = exponential(begin + j, n);
    if (keeps) store(e, kept + j, n);
    return e;
  });
  if (form.has_sink()) sum += std::exp(form.sink - top);
  const V share = set(1 / sum);
  fill(0, begin);
  for_vectors_of(p + begin, end - begin, [&](int64_t j, auto n) {
    const V e = keeps ? load(kept + j, n) : exponential(begin + j, n);
    store(hn::Mul(e, share), p + begin + j, n);
  });
  fill(end, keys);
  return top + std::log(sum);
}

template <class T>
float softmax_seen(const T* s, Output<T> p, int64_t keys, int64_t begin, int64_t end,
                   const SoftmaxForm<float>& form) {
  return form.soft_cap > 0 ? softmax_seen_as<true>(s, p, keys, begin, end, form)
                           : softmax_seen_as<false>(s, p, keys, begin, end, form);
}
float softmax_f32(const float* s, Output<float> p, int64_t keys, int64_t begin, int64_t end,
                  const SoftmaxForm<float>& form) {
  return softmax_seen(s, p, keys, begin, end, form);
}
float softmax_bf16(const bf16* s, Output<bf16> p, int64_t keys, int64_t begin, int64_t end,
                   const SoftmaxForm<float>& form) {
  return softmax_seen(s, p, keys, begin, end, form);
}

// Gives the sum of p dp.
template <class T>
float softmax_row_backward(const T* p, const T* dp, Output<T> ds, int64_t keys, float scale) {
  const float sum =
      sum_of(keys, [&](int64_t i, auto n) { return hn::Mul(load(p + i, n), load(dp + i, n)); });
  const V dot = set(sum), factor = set(scale);
  for_vectors_of(ds, keys, [&](int64_t i, auto n) {
    __builtin_prefetch(p + keys + i);  // the next row, while memory would stand still
    __builtin_prefetch(dp + keys + i);
    const V weight = hn::Mul(factor, load(p + i, n));
    store(hn::Mul(weight, hn::Sub(load(dp + i, n), dot)), ds + i, n);
  });
  return sum;
}

float softmax_backward_f32(const float* p, const float* dp, Output<float> ds, int64_t keys,
                           float scale) {
  return softmax_row_backward(p, dp, ds, keys, scale);
}
float softmax_backward_bf16(const bf16* p, const bf16* dp, Output<bf16> ds, int64_t keys,
                            float scale) {
  return softmax_row_backward(p, dp, ds, keys, scale);
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(softmax_f32);
HWY_EXPORT(softmax_bf16);
HWY_EXPORT(softmax_backward_f32);
HWY_EXPORT(softmax_backward_bf16);

namespace {

constexpr int64_t kRowsPerBlock = 16;

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Calls f(T{}) with the element type.
template <class F>
void for_type(DType type, F&& f) {
  switch (type) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::bf16: return f(bf16{});
    default: fail("softmax takes f64, f32 or bf16, not {}", name(type));
  }
}

template <class F>
void for_rows(Stream& stream, int64_t rows, F&& f) {
  for_blocks(stream, rows, kRowsPerBlock, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) f(row);
  });
}

// Which keys a query sees.
struct Sight {
  Sight(const SoftmaxArgs& args, int64_t row)
      : causal(args.causal), position(row % args.s.size(2)) {
    const int64_t sample = row / (args.s.size(1) * args.s.size(2));
    const int64_t query = sample * args.s.size(2) + position;
    if (args.q_positions.defined()) {
      position = args.q_positions.data<int32_t>()[query];
      keys = args.k_positions.data<int32_t>() + sample * args.s.size(3);
    }
    begin = lowest_seen(position, args.window, args.chunk);
    if (args.window_start.defined())
      begin = std::max<int64_t>(begin, args.window_start.data<int32_t>()[query]);
  }
  bool sees(int64_t j) const {
    const int64_t key = keys == nullptr ? j : keys[j];
    return key >= begin && (!causal || key <= position);
  }
  // The keys that are seen where these are counted by their places.
  int64_t first() const { return std::max<int64_t>(begin, 0); }
  int64_t last(int64_t count) const { return causal ? std::min(position + 1, count) : count; }

  bool causal;
  int64_t position, begin;
  const int32_t* keys = nullptr;
};

template <class T>
Sum<T> softmax_row(const T* s, T* p, int64_t keys, const SoftmaxForm<Sum<T>>& form,
                   const Sight& sight) {
  constexpr Sum<T> kHidden = -std::numeric_limits<Sum<T>>::infinity();
  const auto score = [&](int64_t j) {
    if (!sight.sees(j)) return kHidden;
    const Sum<T> y = form.scale * static_cast<Sum<T>>(s[j]);
    return form.soft_cap == 0 ? y : form.soft_cap * std::tanh(y / form.soft_cap);
  };
  Sum<T> top = form.sink, sum = 0;
  for (int64_t j = 0; j < keys; ++j) top = std::max(top, score(j));
  if (top == kHidden) {
    std::fill_n(p, keys, T(Sum<T>{0}));
    return kHidden;
  }
  for (int64_t j = 0; j < keys; ++j) sum += std::exp(score(j) - top);
  if (form.has_sink()) sum += std::exp(form.sink - top);
  for (int64_t j = 0; j < keys; ++j) p[j] = T(std::exp(score(j) - top) / sum);
  return top + std::log(sum);
}

// Vectors where the keys seen are a run; false for f64, other keys, or none.
template <class T>
bool softmax_run(const T* s, Output<T> p, int64_t keys, const SoftmaxForm<Sum<T>>& form,
                 const Sight& sight, Sum<T>& lse) {
  if constexpr (std::is_same_v<T, double>) {
    return false;
  } else {
    const int64_t begin = sight.first(), end = sight.last(keys);
    if (sight.keys != nullptr || begin >= end) return false;
    if constexpr (std::is_same_v<T, float>) {
      lse = HWY_DYNAMIC_DISPATCH(softmax_f32)(s, p, keys, begin, end, form);
    } else {
      lse = HWY_DYNAMIC_DISPATCH(softmax_bf16)(s, p, keys, begin, end, form);
    }
    return true;
  }
}

// Gives the sum of p dp.
template <class T>
Sum<T> softmax_row_gradient(const T* p, const T* dp, Output<T> ds, int64_t keys, Sum<T> scale) {
  if constexpr (std::is_same_v<T, float>) {
    return HWY_DYNAMIC_DISPATCH(softmax_backward_f32)(p, dp, ds, keys, scale);
  } else if constexpr (std::is_same_v<T, bf16>) {
    return HWY_DYNAMIC_DISPATCH(softmax_backward_bf16)(p, dp, ds, keys, scale);
  } else {
    Sum<T> dot = 0;
    for (int64_t j = 0; j < keys; ++j) dot += p[j] * dp[j];
    for (int64_t j = 0; j < keys; ++j) ds.p[j] = scale * p[j] * (dp[j] - dot);
    return dot;
  }
}

// The same of capped scores, log p + lse.
template <class T>
Sum<T> capped_row_gradient(const T* p, const T* dp, T* ds, int64_t keys, Sum<T> scale, Sum<T> cap,
                           Sum<T> lse) {
  const auto at = [](const T* x, int64_t j) { return static_cast<Sum<T>>(x[j]); };
  Sum<T> dot = 0;
  for (int64_t j = 0; j < keys; ++j) dot += at(p, j) * at(dp, j);
  for (int64_t j = 0; j < keys; ++j) {
    const Sum<T> weight = at(p, j);
    // A score whose p is 0 has no gradient, whatever it was.
    const Sum<T> t = weight == 0 ? Sum<T>{1} : (std::log(weight) + lse) / cap;
    ds[j] = T(scale * weight * (at(dp, j) - dot) * (1 - t * t));
  }
  return dot;
}

// What one row adds to -dsinks.
template <class C>
double sink_term(const C* sinks, const C* lse, int64_t row, int64_t head, C delta) {
  if (sinks[head] == -std::numeric_limits<C>::infinity()) return 0;
  return std::exp(static_cast<double>(sinks[head]) - static_cast<double>(lse[row])) *
         static_cast<double>(delta);
}

}  // namespace

void softmax(const SoftmaxArgs& args, Stream& stream) {
  check(args);
  const int64_t keys = args.s.size(3), rows = args.s.size(0) * args.s.size(1) * args.s.size(2);
  for_type(args.s.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* s = args.s.data<T>();
    const Output<T> p{args.p.data<T>(), passes_caches(args.p, {s})};
    Sum<T>* lse = args.lse.data<Sum<T>>();
    const Sum<T>* sinks = args.sinks.defined() ? args.sinks.data<Sum<T>>() : nullptr;
    for_rows(stream, rows, [&](int64_t row) {
      const Sight sight(args, row);
      const int64_t at = row * keys;
      SoftmaxForm<Sum<T>> form{static_cast<Sum<T>>(args.scale), static_cast<Sum<T>>(args.soft_cap)};
      if (sinks != nullptr) form.sink = sinks[row / args.s.size(2) % args.s.size(1)];
      if (!softmax_run(s + at, p + at, keys, form, sight, lse[row]))
        lse[row] = softmax_row(s + at, p.p + at, keys, form, sight);
    });
  });
}

void softmax_backward(const SoftmaxBackwardArgs& args, Stream& stream) {
  check(args);
  const int64_t keys = args.p.size(3), queries = args.p.size(2);
  const int64_t rows = args.p.size(0) * args.p.size(1) * queries;
  const std::shared_ptr<Storage> scratch = softmax_backward_scratch(args, stream);
  double* terms = scratch == nullptr ? nullptr : reinterpret_cast<double*>(scratch->data());
  for_type(args.p.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* all_p = args.p.data<T>();
    const T* all_dp = args.dp.data<T>();
    const Output<T> all_ds{args.ds.data<T>(), passes_caches(args.ds, {all_p, all_dp})};
    using C = Sum<T>;
    const auto scale = static_cast<C>(args.scale), cap = static_cast<C>(args.soft_cap);
    const C* lse = args.lse.defined() ? args.lse.data<C>() : nullptr;
    const C* sinks = terms == nullptr ? nullptr : args.sinks.data<C>();
    for_rows(stream, rows, [&](int64_t row) {
      const T* p = all_p + row * keys;
      const T* dp = all_dp + row * keys;
      const Output<T> ds = all_ds + row * keys;
      const C delta = cap > 0 ? capped_row_gradient<T>(p, dp, ds.p, keys, scale, cap, lse[row])
                              : softmax_row_gradient<T>(p, dp, ds, keys, scale);
      if (terms != nullptr)
        terms[row] = sink_term(sinks, lse, row, row / queries % args.p.size(1), delta);
    });
  });
  if (!args.dsinks.out.defined()) return;
  const int64_t samples = queries == 0 ? 0 : args.p.size(0);
  for (int64_t head = 0; head < samples * args.p.size(1); ++head) {
    const double* of_head = terms + head * queries;
    terms[head] = std::accumulate(of_head, of_head + queries, 0.0);
  }
  add_sink_gradients(terms, samples, args.dsinks);
}

std::shared_ptr<Storage> softmax_backward_scratch(const SoftmaxBackwardArgs& args, Stream& stream) {
  if (!args.dsinks.out.defined()) return nullptr;
  const int64_t rows = args.p.size(0) * args.p.size(1) * args.p.size(2);
  return stream.scratch().allocate(rows * 8, "softmax sink gradients");
}

}  // namespace megatron::kernels::cpu
#endif
