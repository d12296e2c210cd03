#include "kernels/cpu/attention/rows.h"

#include <limits>

#include "base/philox.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/rows.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/products/pairs-inl.h"
#include "kernels/cpu/tanh-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

using Integers = hn::RebindToSigned<Floats>;

void consecutive_random_row(uint32_t first, int64_t keys, uint32_t position, uint64_t sample,
                            uint64_t philox_key, uint32_t* words) {
  const PhiloxRow row(position, sample, philox_key);
  const auto draw = [&]<size_t N>(int64_t j) {
    const auto drawn = row.consecutive<N>((first + static_cast<uint32_t>(j)) / 4);
    for (const PhiloxWords& d : drawn) {
      hn::StoreU(d.first, Words(), words + j);
      hn::StoreU(d.second, Words(), words + j + kLanes);
      j += 2 * kLanes;
    }
  };
  constexpr int64_t kTwo = 2 * kLanes;
  int64_t j = 0;
  for (; j + 3 * kTwo < keys; j += 4 * kTwo) draw.template operator()<4>(j);
  for (; j < keys; j += kTwo) draw.template operator()<1>(j);
}

// v with elements of masked keys replaced by `otherwise`.
HWY_INLINE V where_seen(const TilePlace& place, int64_t i, int64_t j, V v, V otherwise) {
  if (place.all_seen) return v;
  const Integers integers;
  const auto key = hn::LoadU(integers, place.key + j);
  auto hidden = hn::Gt(key, hn::Set(integers, place.limit[i]));
  if (place.key_begin != nullptr)
    hidden = hn::Or(hidden, hn::Lt(key, hn::Set(integers, place.key_begin[i])));
  return hn::IfThenElse(hn::RebindMask(kFloats, hidden), otherwise, v);
}

HWY_INLINE V drop(const TileDropout& dropout, int64_t i, int64_t j, V v) {
  if (dropout.words == nullptr) return v;
  const auto drawn = hn::LoadU(Words(), dropout.words + i * kKeyColumns + j);
  const auto dropped = hn::RebindMask(kFloats, hn::Lt(drawn, hn::Set(Words(), dropout.threshold)));
  return hn::IfThenZeroElse(dropped, hn::Mul(v, set(dropout.scale)));
}

// Scales, caps, shifts and masks scores in place. Returns the maximum of them and `largest`.
template <bool capped, bool biased>
HWY_INLINE float scale_scores(const SoftmaxStep& step, int64_t i, float largest) {
  float* row = step.scores + i * kKeyColumns;
  const V hidden = set(-std::numeric_limits<float>::infinity());
  V top = set(largest);
  for (int64_t j = 0; j < step.place.keys; j += kLanes) {
    V y = hn::Mul(load(row + j), set(step.scale));
    if constexpr (capped) y = soft_capped(y, step.soft_cap);
    if constexpr (biased) y = hn::Add(y, load(step.bias[i] + j));
    y = where_seen(step.place, i, j, y, hidden);
    store(y, row + j);
    top = hn::Max(top, y);
  }
  return hn::GetLane(hn::MaxOfLanes(kFloats, top));
}

template <WordKind kind>
HWY_INLINE float weigh_scores(const SoftmaxStep& step, int64_t i, float base) {
  float* row = step.scores + i * kKeyColumns;
  V sums[kSumVectors];
  for (V& s : sums) s = hn::Zero(kFloats);
  for (int64_t j = 0; j < step.place.keys; j += kSums) {
    V weights[kSumVectors];
    for (int64_t k = 0; k < kSumVectors; ++k) {
      const int64_t at = j + k * kLanes;
      const V p = power_of_e<kind>(hn::Sub(load(row + at), set(base)));
      sums[k] = hn::Add(sums[k], p);
      weights[k] = drop(step.dropout, i, at, p);
    }
    for (int64_t k = 0; k < kSumVectors; k += 2) {
      const int64_t at = j + k * kLanes;
      if constexpr (kind == WordKind::f32) {
        store(weights[k], row + at);
        store(weights[k + 1], row + at + kLanes);
      } else {
        store_pairs(upper_half(weights[k]), upper_half(weights[k + 1]),
                    step.weights + (i * kKeyColumns + at) / 2);
      }
    }
  }
  return add_lanes(sums);
}

// Processes the tile in passes, so that no row waits for the reductions of the previous one. The
// step is passed by value, because the compiler knows that stores do not change a local's fields.
template <WordKind kind, bool capped, bool biased>
void softmax_rows(SoftmaxStep step) {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  const int64_t rows = step.place.rows;
  float after[kQueryRows], base[kQueryRows], sums[kQueryRows], shrink[kQueryRows];
  for (int64_t i = 0; i < rows; ++i) {
    after[i] = scale_scores<capped, biased>(step, i, step.maximum[i]);
    base[i] = after[i] == kHidden ? 0.0f : after[i];
  }
  for (int64_t i = 0; i < rows; ++i) sums[i] = weigh_scores<kind>(step, i, base[i]);
  for_vectors(0, rows, [&](int64_t i, auto n) {
    const V factor = exp_up_to_90(hn::Sub(load(step.maximum + i, n), load(base + i, n)));
    store(factor, shrink + i, n);
    const V sum = hn::Add(hn::Mul(load(step.sum + i, n), factor), load(sums + i, n));
    store(sum, step.sum + i, n);
  });
  for (int64_t i = 0; i < rows; ++i) {
    if (step.maximum[i] == after[i]) continue;
    step.maximum[i] = after[i];
    float* output = step.output + i * step.width;
    for (int64_t d = 0; d < step.width; d += kLanes)
      store(hn::Mul(load(output + d), set(shrink[i])), output + d);
  }
}

template <bool capped, bool biased>
void softmax_steps_of(const SoftmaxStep& step) {
  step.kind == WordKind::f32 ? softmax_rows<WordKind::f32, capped, biased>(step)
                             : softmax_rows<WordKind::bf16_pair, capped, biased>(step);
}

void softmax_steps(const SoftmaxStep& step) {
  if (step.bias != nullptr) {
    step.soft_cap > 0 ? softmax_steps_of<true, true>(step) : softmax_steps_of<false, true>(step);
  } else {
    step.soft_cap > 0 ? softmax_steps_of<true, false>(step) : softmax_steps_of<false, false>(step);
  }
}

struct WeightAndSlope {
  V weight, slope;
};

template <WordKind kind, bool capped, bool biased>
HWY_INLINE WeightAndSlope gradient(const GradientStep& step, int64_t i, int64_t j) {
  V capped_score = hn::Mul(load(step.scores + i * kKeyColumns + j), set(step.scale));
  if constexpr (capped) capped_score = soft_capped(capped_score, step.soft_cap);
  V y = capped_score;
  if constexpr (biased) y = hn::Add(y, load(step.bias[i] + j));
  const V p = where_seen(step.place, i, j, power_of_e<kind>(hn::Sub(y, set(step.lse[i]))),
                         hn::Zero(kFloats));
  const V dp = drop(step.dropout, i, j, load(step.slopes + i * kKeyColumns + j));
  const V above_mean = hn::Sub(dp, set(step.delta[i]));
  if constexpr (biased) {
    if (step.bias_gradient != nullptr) {
      float* sums = step.bias_gradient[i] + j;
      store(hn::Add(load(sums), hn::Mul(p, above_mean)), sums);
    }
  }
  V slope = hn::Mul(hn::Mul(p, set(step.scale)), above_mean);
  if constexpr (capped) slope = hn::Mul(slope, soft_cap_slope(capped_score, step.soft_cap));
  return {drop(step.dropout, i, j, p), slope};
}

template <bool capped, bool biased>
void gradient_rows_f32(GradientStep step) {
  for (int64_t i = 0; i < step.place.rows; ++i) {
    for (int64_t j = 0; j < step.place.keys; j += kLanes) {
      const WeightAndSlope both = gradient<WordKind::f32, capped, biased>(step, i, j);
      store(both.weight, step.scores + i * kKeyColumns + j);
      store(both.slope, step.slopes + i * kKeyColumns + j);
    }
  }
}

template <bool capped, bool biased>
void gradient_row_pairs(GradientStep step) {
  constexpr WordKind kPairs = WordKind::bf16_pair;
  for (int64_t i = 0; i < step.place.rows; i += 2) {
    for (int64_t j = 0; j < step.place.keys; j += 2 * kLanes) {
      hn::Vec<Words> slopes[2][2];
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t at = j + half * kLanes, word = i / 2 * kKeyColumns + at;
        const WeightAndSlope even = gradient<kPairs, capped, biased>(step, i, at);
        const WeightAndSlope odd = gradient<kPairs, capped, biased>(step, i + 1, at);
        slopes[0][half] = upper_half(even.slope);
        slopes[1][half] = upper_half(odd.slope);
        store_row_pair(slopes[0][half], slopes[1][half], step.slope_row_pairs + word);
        store_row_pair(upper_half(even.weight), upper_half(odd.weight),
                       step.weight_row_pairs + word);
      }
      for (int64_t row = 0; row < 2; ++row) {
        store_pairs(slopes[row][0], slopes[row][1],
                    step.slope_pairs + ((i + row) * kKeyColumns + j) / 2);
      }
    }
  }
}

template <bool capped, bool biased>
void gradient_steps_of(const GradientStep& step) {
  step.kind == WordKind::f32 ? gradient_rows_f32<capped, biased>(step)
                             : gradient_row_pairs<capped, biased>(step);
}

void gradient_steps(const GradientStep& step) {
  if (step.bias != nullptr) {
    step.soft_cap > 0 ? gradient_steps_of<true, true>(step) : gradient_steps_of<false, true>(step);
  } else {
    step.soft_cap > 0 ? gradient_steps_of<true, false>(step)
                      : gradient_steps_of<false, false>(step);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(consecutive_random_row);
HWY_EXPORT(softmax_steps);
HWY_EXPORT(gradient_steps);

void random_row(const int32_t* key, int64_t keys, uint32_t position, uint64_t sample,
                uint64_t philox_key, uint32_t* words) {
  const auto first = static_cast<uint32_t>(key[0]);
  bool consecutive = first % 4 == 0;
  for (int64_t j = 0; j < keys && consecutive; ++j) {
    consecutive =
        static_cast<uint32_t>(key[j]) == first + static_cast<uint32_t>(j) || key[j] == INT32_MAX;
  }
  if (consecutive) {
    return HWY_DYNAMIC_DISPATCH(consecutive_random_row)(first, keys, position, sample, philox_key,
                                                        words);
  }
  const auto half = [](uint64_t word, int shift) { return static_cast<uint32_t>(word >> shift); };
  for (int64_t j = 0; j < keys; ++j) {
    const auto channel = static_cast<uint32_t>(key[j]);
    words[j] = philox({channel / 4, position, half(sample, 0), half(sample, 32)},
                      {half(philox_key, 0), half(philox_key, 32)})[channel % 4];
  }
}

void softmax_step(const SoftmaxStep& step) { HWY_DYNAMIC_DISPATCH(softmax_steps)(step); }
void gradient_step(const GradientStep& step) { HWY_DYNAMIC_DISPATCH(gradient_steps)(step); }

}  // namespace megatron::kernels::cpu
#endif
