#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/check.h"
#include "kernels/cpu/attention.h"

namespace megatron::kernels::cpu {

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
  stream.pool().parallel_for((rows + kRowsPerBlock - 1) / kRowsPerBlock, [&](int64_t block, int) {
    const int64_t end = std::min(rows, (block + 1) * kRowsPerBlock);
    for (int64_t row = block * kRowsPerBlock; row < end; ++row) f(row);
  });
}

// Which keys a query sees.
struct Sight {
  Sight(const SoftmaxArgs& args, int64_t row)
      : causal(args.causal), position(row % args.s.size(2)) {
    const int64_t sample = row / (args.s.size(1) * args.s.size(2));
    const int64_t query = sample * args.s.size(2) + position;
    if (args.q_begins.defined()) begin = args.q_begins.data<int32_t>()[query];
    if (!args.q_positions.defined()) return;
    position = args.q_positions.data<int32_t>()[query];
    keys = args.k_positions.data<int32_t>() + sample * args.s.size(3);
  }
  bool sees(int64_t j) const {
    const int64_t key = keys == nullptr ? j : keys[j];
    return key >= begin && (!causal || key <= position);
  }

  bool causal;
  int64_t position, begin = std::numeric_limits<int32_t>::min();
  const int32_t* keys = nullptr;
};

template <class T>
Sum<T> softmax_row(const T* s, T* p, int64_t keys, Sum<T> scale, const Sight& sight) {
  constexpr Sum<T> kHidden = -std::numeric_limits<Sum<T>>::infinity();
  const auto score = [&](int64_t j) {
    return sight.sees(j) ? scale * static_cast<Sum<T>>(s[j]) : kHidden;
  };
  Sum<T> top = kHidden, sum = 0;
  for (int64_t j = 0; j < keys; ++j) top = std::max(top, score(j));
  if (top == kHidden) {
    std::fill_n(p, keys, T(Sum<T>{0}));
    return kHidden;
  }
  for (int64_t j = 0; j < keys; ++j) sum += std::exp(score(j) - top);
  for (int64_t j = 0; j < keys; ++j) p[j] = T(std::exp(score(j) - top) / sum);
  return top + std::log(sum);
}

}  // namespace

void softmax(const SoftmaxArgs& args, Stream& stream) {
  check(args);
  const int64_t keys = args.s.size(3), rows = args.s.size(0) * args.s.size(1) * args.s.size(2);
  for_type(args.s.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* s = args.s.data<T>();
    T* p = args.p.data<T>();
    Sum<T>* lse = args.lse.data<Sum<T>>();
    for_rows(stream, rows, [&](int64_t row) {
      lse[row] = softmax_row(s + row * keys, p + row * keys, keys, static_cast<Sum<T>>(args.scale),
                             Sight(args, row));
    });
  });
}

void softmax_backward(const SoftmaxBackwardArgs& args, Stream& stream) {
  check(args);
  const int64_t keys = args.p.size(3), rows = args.p.size(0) * args.p.size(1) * args.p.size(2);
  for_type(args.p.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* all_p = args.p.data<T>();
    const T* all_dp = args.dp.data<T>();
    T* all_ds = args.ds.data<T>();
    const auto scale = static_cast<Sum<T>>(args.scale);
    for_rows(stream, rows, [&](int64_t row) {
      const T* p = all_p + row * keys;
      const T* dp = all_dp + row * keys;
      T* ds = all_ds + row * keys;
      Sum<T> dot = 0;
      for (int64_t j = 0; j < keys; ++j)
        dot += static_cast<Sum<T>>(p[j]) * static_cast<Sum<T>>(dp[j]);
      for (int64_t j = 0; j < keys; ++j) {
        ds[j] = T(scale * static_cast<Sum<T>>(p[j]) * (static_cast<Sum<T>>(dp[j]) - dot));
      }
    });
  });
}

}  // namespace megatron::kernels::cpu
