#include <algorithm>
#include <limits>

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/exponential.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/sink_gradients.h"
#include "kernels/cuda/soft_cap_of_scores.h"
#include "kernels/cuda/softmax_sum.h"
#include "kernels/cuda_scratch/softmax.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

constexpr int kRowsPerBlock = kThreads / kWarp;  // a warp each
// Chunks of a row, 1024 keys, that a lane reads at once and keeps in registers. Longer rows are read
// again from there on.
template <class T>
inline constexpr int kKept = 1024 / (kWarp * kChunk<T>);

template <class T>
struct Scores {
  const T* s;
  T* p;
  float* lse;
  const int32_t *q_positions, *k_positions, *window_start;  // null where there are none
  const float* sinks;                                       // null: none
  int64_t rows, queries, keys, heads_and_queries;
  float scale;
  SoftCap soft_cap;
  int window, chunk;  // 0: none
  bool causal, whole;
};

// Which keys a query sees.
struct Sight {
  template <class T>
  __device__ Sight(const Scores<T>& a, int64_t row)
      : causal(a.causal), position(static_cast<int>(row % a.queries)) {
    const int64_t sample = row / a.heads_and_queries, query = sample * a.queries + position;
    if (a.q_positions != nullptr) {
      position = a.q_positions[query];
      keys = a.k_positions + sample * a.keys;
    }
    if (a.window_start != nullptr) begin = a.window_start[query];
    if (a.window > 0) begin = max(begin, position - a.window + 1);
    if (a.chunk > 0) begin = max(begin, position - position % a.chunk);
  }
  __device__ bool sees(int64_t j) const {
    const int key = keys == nullptr ? static_cast<int>(j) : keys[j];
    return key >= begin && (!causal || key <= position);
  }

  bool causal;
  int position, begin = std::numeric_limits<int32_t>::min();
  const int32_t* keys = nullptr;
};

template <class T>
using Chunk = Vector<T, kChunk<T>>;

template <class T>
struct Seen {
  float at[kChunk<T>];  // -infinity where not seen
};

// Of scores from key j on.
template <bool kCapped, class T>
__device__ Seen<T> seen_scores(const Scores<T>& a, const Sight& sight, const Chunk<T>& s,
                               int64_t j) {
  Seen<T> seen;
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) {
    const float product = to_float(s.at[i]);
    const float score = a.scale * (kCapped ? a.soft_cap.capped(product) : product);
    seen.at[i] = j + i < a.keys && sight.sees(j + i) ? score : -INFINITY;
  }
  return seen;
}

template <bool kCapped, class T>
__global__ void __launch_bounds__(kThreads, 2) normalise(Scores<T> a) {
  constexpr int N = kChunk<T>;
  const int64_t lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= a.rows) return;
  const int64_t at = row * a.keys;
  const auto load = [&](int64_t j) { return load_chunk<N>(a.s + at + j, a.keys - j, a.whole); };
  const auto key = [&](int round) { return (round * kWarp + lane) * N; };
  Chunk<T> s[kKept<T>];
#pragma unroll
  for (int k = 0; k < kKept<T>; ++k) s[k] = load(key(k));
  const Sight sight(a, row);
  SoftmaxSum all;
#pragma unroll
  for (int k = 0; k < kKept<T>; ++k)
    if (key(k) < a.keys) all.add(seen_scores<kCapped>(a, sight, s[k], key(k)).at);
  for (int64_t j = key(kKept<T>); j < a.keys; j += kWarp * N)
    all.add(seen_scores<kCapped>(a, sight, load(j), j).at);
  all = warp_merge(all);
  if (a.sinks != nullptr) {
    const float sink = a.sinks[row / a.queries % (a.heads_and_queries / a.queries)];
    const float top = fmaxf(all.most, sink);
    all = {top, all.scaled_to(top) + exp_approx(sink - SoftmaxSum::shift(top))};
  }

  const bool none = all.most == -INFINITY;
  const float share = none ? 0.0f : 1.0f / all.sum, most = SoftmaxSum::shift(all.most);
  const auto store = [&](const Chunk<T>& scores, int64_t j) {
    const Seen<T> seen = seen_scores<kCapped>(a, sight, scores, j);
    Chunk<T> p;
#pragma unroll
    for (int i = 0; i < N; ++i) p.at[i] = from_float<T>(exp_approx(seen.at[i] - most) * share);
    store_chunk(a.p + at + j, p, a.keys - j, a.whole);
  };
#pragma unroll
  for (int k = 0; k < kKept<T>; ++k)
    if (key(k) < a.keys) store(s[k], key(k));
  for (int64_t j = key(kKept<T>); j < a.keys; j += kWarp * N) store(load(j), j);
  if (lane == 0) a.lse[row] = none ? -INFINITY : all.most + logf(all.sum);
}

template <class T>
struct Gradients {
  const T *p, *dp;
  T* ds;
  const float* lse;  // of capped scores
  float* delta;      // null: not asked for
  int64_t rows, keys;
  float scale, inverse_cap;
  bool whole;
};

template <class T>
struct Pair {
  Chunk<T> p, dp;
};

template <bool kCapped, class T>
__global__ void __launch_bounds__(kThreads) differentiate(Gradients<T> a) {
  constexpr int N = kChunk<T>;
  const int64_t lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= a.rows) return;
  const int64_t at = row * a.keys;
  const auto load = [&](int64_t j) {
    const int64_t count = a.keys - j;
    return Pair<T>{load_chunk<N>(a.p + at + j, count, a.whole),
                   load_chunk<N>(a.dp + at + j, count, a.whole)};
  };
  const auto key = [&](int round) { return (round * kWarp + lane) * N; };
  float dot = 0;
  const auto add = [&](const Pair<T>& pair) {
#pragma unroll
    for (int i = 0; i < N; ++i) dot = fmaf(to_float(pair.p.at[i]), to_float(pair.dp.at[i]), dot);
  };
  Pair<T> kept[kKept<T>];
#pragma unroll
  for (int k = 0; k < kKept<T>; ++k) kept[k] = load(key(k));
#pragma unroll
  for (int k = 0; k < kKept<T>; ++k) add(kept[k]);
  for (int64_t j = key(kKept<T>); j < a.keys; j += kWarp * N) add(load(j));
  dot = warp_sum(dot);
  if (a.delta != nullptr && lane == 0) a.delta[row] = dot;
  float lse = 0;
  if constexpr (kCapped) lse = a.lse[row];

  const auto store = [&](const Pair<T>& pair, int64_t j) {
    Chunk<T> ds;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float p = to_float(pair.p.at[i]);
      float slope = a.scale * p * (to_float(pair.dp.at[i]) - dot);
      if constexpr (kCapped) {
        // A score whose p is 0 has no gradient, whatever it was.
        const float t = p == 0 ? 1.0f : (logf(p) + lse) * a.inverse_cap;
        slope *= fmaf(-t, t, 1.0f);
      }
      ds.at[i] = from_float<T>(slope);
    }
    store_chunk(a.ds + at + j, ds, a.keys - j, a.whole);
  };
#pragma unroll
  for (int k = 0; k < kKept<T>; ++k)
    if (key(k) < a.keys) store(kept[k], key(k));
  for (int64_t j = key(kKept<T>); j < a.keys; j += kWarp * N) store(load(j), j);
}

Grid a_warp_a_row(int64_t rows) { return grid_for(rows * kWarp); }

}  // namespace

void softmax(const SoftmaxArgs& args, Stream& stream) {
  check(args);
  const int64_t queries = args.s.size(2), keys = args.s.size(3),
                of_sample = args.s.size(1) * queries;
  const int64_t rows = args.s.size(0) * of_sample;
  for_storage_type("softmax", args.s.dtype(), [&](auto type) {
    using T = decltype(type);
    if (rows == 0) return;
    Scores<T> a{.s = address_of<T>(args.s),
                .p = address_of<T>(args.p),
                .lse = address_of<float>(args.lse),
                .q_positions = address_of<int32_t>(args.q_positions),
                .k_positions = address_of<int32_t>(args.k_positions),
                .window_start = address_of<int32_t>(args.window_start),
                .sinks = address_of<float>(args.sinks),
                .rows = rows,
                .queries = queries,
                .keys = keys,
                .heads_and_queries = of_sample,
                .scale = static_cast<float>(args.scale),
                .soft_cap = SoftCap::of(args.soft_cap, args.scale),
                .window = static_cast<int>(std::min<int64_t>(args.window, INT32_MAX)),
                .chunk = static_cast<int>(std::min<int64_t>(args.chunk, INT32_MAX)),
                .causal = args.causal,
                .whole = false};
    a.whole = keys % kChunk<T> == 0 && are_aligned({a.s, a.p});
    const auto kernel = args.soft_cap > 0 ? normalise<true, T> : normalise<false, T>;
    launch("softmax", kernel, a_warp_a_row(rows), stream, a);
  });
}

void softmax_backward(const SoftmaxBackwardArgs& args, Stream& stream) {
  check(args);
  const Tensor delta = softmax_backward_scratch(args, stream);
  for_storage_type("softmax_backward", args.p.dtype(), [&](auto type) {
    using T = decltype(type);
    if (args.p.elements() == 0) return;
    const int64_t keys = args.p.size(3), rows = args.p.elements() / keys;
    Gradients<T> a{.p = address_of<T>(args.p),
                   .dp = address_of<T>(args.dp),
                   .ds = address_of<T>(args.ds),
                   .lse = address_of<float>(args.lse),
                   .delta = address_of<float>(delta),
                   .rows = rows,
                   .keys = keys,
                   .scale = static_cast<float>(args.scale),
                   .inverse_cap = static_cast<float>(args.soft_cap > 0 ? 1 / args.soft_cap : 0),
                   .whole = false};
    a.whole = keys % kChunk<T> == 0 && are_aligned({a.p, a.dp, a.ds});
    const auto kernel = args.soft_cap > 0 ? differentiate<true, T> : differentiate<false, T>;
    launch("softmax_backward", kernel, a_warp_a_row(rows), stream, a);
  });
  if (delta.defined() && args.p.elements() == 0) {
    fill({.out = delta, .value = 0}, stream);
  }
  sink_gradients(args.sinks, args.lse, delta, args.dsinks, stream);
}

}  // namespace megatron::kernels::cuda
