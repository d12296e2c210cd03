#include "kernels/cpu/attention_rows.h"

#include <limits>

#include "base/philox.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_rows.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/philox-inl.h"

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

// Values of the elements of a tile that are not seen are replaced.
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

// The bits of bf16(v) in the upper half of each word, nearest even. Where bf16 is multiplied a NaN
// comes from bf16 operands or from arithmetic: its lower bits are zero, so that the sum does not
// overflow and it stays a NaN.
HWY_INLINE hn::Vec<Words> upper_half(V v) {
  const auto bits = hn::BitCast(Words(), v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(Words(), 1u));
  return hn::Add(hn::Add(bits, hn::Set(Words(), 0x7fffu)), odd);
}

// Columns j .. of row i of a tile of pairs of keys.
HWY_INLINE void store_pairs(hn::Vec<Words> upper, uint32_t* words, int64_t i, int64_t j) {
  uint16_t* to = reinterpret_cast<uint16_t*>(words + i * (kKeyColumns / 2)) + j;
  hn::StoreU(hn::TruncateTo(Halves(), hn::ShiftRight<16>(upper)), Halves(), to);
}

// Scaled and masked scores, in place; the largest of them and `largest`.
HWY_INLINE float scale_scores(const SoftmaxStep& step, int64_t i, float largest) {
  float* row = step.scores + i * kKeyColumns;
  const V hidden = set(-std::numeric_limits<float>::infinity());
  V top = set(largest);
  for (int64_t j = 0; j < step.place.keys; j += kLanes) {
    const V y = where_seen(step.place, i, j, hn::Mul(load(row + j), set(step.scale)), hidden);
    store(y, row + j);
    top = hn::Max(top, y);
  }
  return hn::GetLane(hn::MaxOfLanes(kFloats, top));
}

// Taken by value: fields of a local are known not to change with the stores.
void softmax_steps(SoftmaxStep step) {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < step.place.rows; ++i) {
    const float before = step.maximum[i];
    const float after = scale_scores(step, i, before);
    const float base = after == kHidden ? 0.0f : after;
    float* row = step.scores + i * kKeyColumns;
    V sums[kSumVectors];
    for (V& s : sums) s = hn::Zero(kFloats);
    for (int64_t j = 0; j < step.place.keys; j += kSums) {
      for (int64_t k = 0; k < kSumVectors; ++k) {
        const int64_t at = j + k * kLanes;
        const V p = exp(hn::Sub(load(row + at), set(base)));
        sums[k] = hn::Add(sums[k], p);
        const V weight = drop(step.dropout, i, at, p);
        if (step.kind == WordKind::f32) {
          store(weight, row + at);
        } else {
          store_pairs(upper_half(weight), step.weights, i, at);
        }
      }
    }
    const float sum = add_lanes(sums);
    if (before == after) {
      step.sum[i] += sum;
      continue;
    }
    const V shrink = exp(set(before - base));
    step.sum[i] = step.sum[i] * hn::GetLane(shrink) + sum;
    step.maximum[i] = after;
    float* output = step.output + i * step.width;
    for (int64_t d = 0; d < step.width; d += kLanes)
      store(hn::Mul(load(output + d), shrink), output + d);
  }
}

struct WeightAndSlope {
  V weight, slope;
};

HWY_INLINE WeightAndSlope gradient(const GradientStep& step, int64_t i, int64_t j) {
  const V y = hn::Mul(load(step.scores + i * kKeyColumns + j), set(step.scale));
  const V p = where_seen(step.place, i, j, exp(hn::Sub(y, set(step.lse[i]))), hn::Zero(kFloats));
  const V dp = drop(step.dropout, i, j, load(step.slopes + i * kKeyColumns + j));
  const V slope = hn::Mul(hn::Mul(p, set(step.scale)), hn::Sub(dp, set(step.delta[i])));
  return {drop(step.dropout, i, j, p), slope};
}

HWY_INLINE void store_row_pair(hn::Vec<Words> even, hn::Vec<Words> odd, uint32_t* words) {
  const auto high = hn::And(odd, hn::Set(Words(), 0xffff0000u));
  hn::StoreU(hn::Or(hn::ShiftRight<16>(even), high), Words(), words);
}

void gradient_steps(GradientStep step) {
  for (int64_t i = 0; i < step.place.rows; i += 2) {
    for (int64_t j = 0; j < step.place.keys; j += kLanes) {
      const WeightAndSlope even = gradient(step, i, j);
      const WeightAndSlope odd = gradient(step, i + 1, j);
      if (step.kind == WordKind::f32) {
        store(even.weight, step.scores + i * kKeyColumns + j);
        store(odd.weight, step.scores + (i + 1) * kKeyColumns + j);
        store(even.slope, step.slopes + i * kKeyColumns + j);
        store(odd.slope, step.slopes + (i + 1) * kKeyColumns + j);
      } else {
        const auto even_slope = upper_half(even.slope), odd_slope = upper_half(odd.slope);
        store_pairs(even_slope, step.slope_pairs, i, j);
        store_pairs(odd_slope, step.slope_pairs, i + 1, j);
        store_row_pair(even_slope, odd_slope, step.slope_row_pairs + i / 2 * kKeyColumns + j);
        store_row_pair(upper_half(even.weight), upper_half(odd.weight),
                       step.weight_row_pairs + i / 2 * kKeyColumns + j);
      }
    }
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
