#include "kernels/cpu/state_scan/rows.h"

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/state_scan/rows.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/products/pairs-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t kTokens = kScanChunk;
using Integers = hn::RebindToSigned<Floats>;

// log(1 + u) for u in [0, 1]: 2 atanh(u / (2 + u)), whose series is cut below 2^-25.
HWY_INLINE V log_of_one_plus(V u) {
  const V s = hn::Div(u, hn::Add(u, set(2.0f))), z = hn::Mul(s, s);
  V q = set(1.0f / 13);
  for (const float term : {1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3})
    q = hn::MulAdd(q, z, set(term));
  const V twice = hn::Add(s, s);
  return hn::MulAdd(hn::Mul(q, z), twice, twice);
}

// log(1 + e^z).
HWY_INLINE V soft_plus(V z) {
  return hn::Add(hn::Max(z, hn::Zero(kFloats)), log_of_one_plus(exp_up_to_90(hn::Neg(hn::Abs(z)))));
}

void steps_of(const ScanLimits<float>& limits, const float* dt, int64_t count, float* steps) {
  for_vectors(0, count, [&](int64_t i, auto n) {
    const V open = soft_plus(hn::Add(load(dt + i, n), set(limits.bias)));
    store(hn::Min(hn::Max(open, set(limits.least)), set(limits.most)), steps + i, n);
  });
}

void step_gradients(const ScanLimits<float>& limits, const float* dt, const float* dsteps,
                    int64_t count, float* ddt) {
  for_vectors(0, count, [&](int64_t i, auto n) {
    const V z = hn::Add(load(dt + i, n), set(limits.bias)), open = soft_plus(z);
    const V slope = hn::Div(load(dsteps + i, n), hn::Add(set(1.0f), exp(hn::Neg(z))));
    const auto limited = hn::Or(hn::Lt(open, set(limits.least)), hn::Gt(open, set(limits.most)));
    store(hn::IfThenZeroElse(limited, slope), ddt + i, n);
  });
}

// Decays below e^-44 = 2^-63.5 are 0: subnormal numbers would take most of the time.
HWY_INLINE V if_felt(V log_decay, V v) {
  return hn::IfThenElseZero(hn::Ge(log_decay, set(-44.0f)), v);
}

void exps(const float* y, int64_t count, float* out) {
  for_vectors(0, count, [&](int64_t i, auto n) {
    const V log_decay = load(y + i, n);
    store(if_felt(log_decay, exp_up_to_90(log_decay)), out + i, n);
  });
}

// True for the elements of a vector from `at` on that are in [begin, end).
HWY_INLINE auto within(int64_t at, int64_t begin, int64_t end) {
  const Integers integers;
  const auto place = hn::Iota(integers, static_cast<int32_t>(at));
  const auto from = hn::Set(integers, static_cast<int32_t>(begin)),
             to = hn::Set(integers, static_cast<int32_t>(end));
  return hn::RebindMask(kFloats, hn::AndNot(hn::Lt(place, from), hn::Lt(place, to)));
}

// e^(high + low), a decay; 1 if the sum is positive, as above the diagonal.
template <WordKind kind>
HWY_INLINE V decay_between(V high, V low) {
  const V log_decay = hn::Min(hn::Add(high, low), hn::Zero(kFloats));
  return if_felt(log_decay, power_of_e<kind>(log_decay));
}

template <WordKind kind>
HWY_INLINE void store_words(V first, V second, uint32_t* row, int64_t column) {
  if constexpr (kind == WordKind::f32) {
    store(first, reinterpret_cast<float*>(row) + column);
    store(second, reinterpret_cast<float*>(row) + column + kLanes);
  } else {
    store_pairs(upper_half(first), upper_half(second), row + column / 2);
  }
}

template <WordKind kind>
void mask_rows_of(const MaskRows<float>& rows) {
  const ScanDecays<float>& d = rows.decays;
  const int64_t width = words(kind, kTokens);
  for (int64_t i = rows.first; i < rows.end; ++i) {
    const int64_t begin = rows.begin[i];
    const V high = set(d.high[i]), low = set(d.low[i]);
    const auto vector = [&](int64_t j) {
      if (j > i || j + kLanes <= begin) return hn::Zero(kFloats);
      const V decay =
          decay_between<kind>(hn::Sub(high, load(d.high + j)), hn::Sub(low, load(d.low + j)));
      const V m = hn::Mul(hn::Mul(load(rows.g + i * kTokens + j), decay), load(d.steps + j));
      if (j >= begin && j + kLanes <= i + 1) return m;
      return hn::IfThenElseZero(within(j, begin, i + 1), m);
    };
    for (int64_t j = 0; j < round_up(i + 1, int64_t{32}); j += 2 * kLanes)
      store_words<kind>(vector(j), vector(j + kLanes), rows.out + i * width, j);
  }
}

void mask_all_rows(const MaskRows<float>& rows) {
  rows.kind == WordKind::f32 ? mask_rows_of<WordKind::f32>(rows)
                             : mask_rows_of<WordKind::bf16_pair>(rows);
}

// sums += v and total += v in f64.
using Doubles = hn::RepartitionToWide<Floats>;
struct DoubleSum {
  hn::Vec<Doubles> low, high;
};
HWY_INLINE void add_twice(V v, double* sums, DoubleSum& total) {
  const Doubles d;
  const hn::Half<Floats> half;
  const auto low = hn::PromoteTo(d, hn::LowerHalf(half, v)),
             high = hn::PromoteTo(d, hn::UpperHalf(half, v));
  hn::StoreU(hn::Add(hn::LoadU(d, sums), low), d, sums);
  hn::StoreU(hn::Add(hn::LoadU(d, sums + kLanes / 2), high), d, sums + kLanes / 2);
  total.low = hn::Add(total.low, low);
  total.high = hn::Add(total.high, high);
}

template <WordKind kind>
void mask_gradient_of(const MaskGradient<float>& rows) {
  const ScanDecays<float>& d = rows.decays;
  const int64_t width = words(kind, kTokens);
  std::fill_n(rows.log_sums, kTokens, 0.0);
  for (int64_t j = 0; j < rows.count; ++j) {
    DoubleSum added{hn::Zero(Doubles()), hn::Zero(Doubles())};
    const int64_t end = rows.end[j], row = j * kTokens;
    const V high = set(d.high[j]), low = set(d.low[j]), step = set(d.steps[j]);
    V sum = hn::Zero(kFloats);
    const auto vector = [&](int64_t i) {
      if (i >= end || i + kLanes <= j) return hn::Zero(kFloats);
      const auto seen = within(i, j, end), after = within(i, j + 1, end);
      const V decay = hn::IfThenElseZero(seen, decay_between<kind>(hn::Sub(load(d.high + i), high),
                                                                   hn::Sub(load(d.low + i), low)));
      const V dm = hn::IfThenElseZero(seen, load(rows.dm + row + i));
      const V m = hn::IfThenElseZero(seen, hn::Mul(load(rows.g + row + i), decay));
      store(hn::MulAdd(hn::Mul(dm, decay), step, load(rows.dg + row + i)), rows.dg + row + i);
      const V slope = hn::IfThenElseZero(after, hn::Mul(dm, m));
      sum = hn::Add(sum, slope);
      add_twice(hn::Mul(slope, step), rows.log_sums + i, added);
      return hn::Mul(m, step);
    };
    for (int64_t i = j / 32 * 32; i < kTokens; i += 2 * kLanes) {
      const V first = vector(i), second = vector(i + kLanes);
      store_words<kind>(first, second, rows.m + j * width, i);
    }
    rows.row_sums[j] = add_halves(kFloats, sum) + rows.dm[row + j] * rows.g[row + j];
    rows.log_sums[j] -= hn::GetLane(hn::SumOfLanes(Doubles(), hn::Add(added.low, added.high)));
  }
}

void mask_gradients(const MaskGradient<float>& rows) {
  rows.kind == WordKind::f32 ? mask_gradient_of<WordKind::f32>(rows)
                             : mask_gradient_of<WordKind::bf16_pair>(rows);
}

template <class T>
HWY_INLINE V weighted(const T* row, float weight, int64_t j, int64_t elements) {
  if (row == nullptr || j >= elements) return hn::Zero(kFloats);
  const V v = j + kLanes <= elements ? load(row + j) : load(row + j, Part{elements - j});
  return hn::Mul(v, set(weight));
}

template <class T, WordKind kind>
void weigh(const MatrixRows& from, const float* weights, int64_t rows, int64_t padded,
           int64_t elements, int64_t panel, uint32_t* out) {
  const auto row = [&](int64_t r) {
    return r < rows ? reinterpret_cast<const T*>(from.base) + r * from.stride : nullptr;
  };
  constexpr int64_t kStep = kind == WordKind::f32 ? 1 : 2;
  for (int64_t r = 0; r < padded; r += kStep, out += kPanel) {
    const T *even = row(r), *odd = row(r + 1);
    const float even_weight = even == nullptr ? 0 : weights[r],
                odd_weight = odd == nullptr ? 0 : weights[r + 1];
    for (int64_t j = 0; j < round_up(elements, kPanel); j += kLanes) {
      uint32_t* to = out + j / kPanel * panel + j % kPanel;
      const V v = weighted(even, even_weight, j, elements);
      if constexpr (kind == WordKind::f32) {
        store(v, reinterpret_cast<float*>(to));
      } else {
        store_row_pair(upper_half(v), upper_half(weighted(odd, odd_weight, j, elements)), to);
      }
    }
  }
}

void weigh_any(WordKind kind, const MatrixRows& from, const float* weights, int64_t rows,
               int64_t padded, int64_t elements, int64_t panel, uint32_t* out) {
  const auto run = [&](auto f) { f(from, weights, rows, padded, elements, panel, out); };
  if (is_paired(kind)) return run(weigh<bf16, WordKind::bf16_pair>);
  from.type == DType::f32 ? run(weigh<float, WordKind::f32>) : run(weigh<bf16, WordKind::f32>);
}

void pair_rows(const float* panel, int64_t rows, uint32_t* pairs) {
  for (int64_t n = 0; n < rows; n += 2, pairs += kPanel) {
    for (int64_t p = 0; p < kPanel; p += kLanes) {
      const V odd = n + 1 < rows ? load(panel + (n + 1) * kPanel + p) : hn::Zero(kFloats);
      store_row_pair(upper_half(load(panel + n * kPanel + p)), upper_half(odd), pairs + p);
    }
  }
}

void scale(float* values, int64_t count, float factor) {
  for_vectors(0, count, [&](int64_t i, auto n) {
    store(hn::Mul(load(values + i, n), set(factor)), values + i, n);
  });
}

template <WordKind kind>
void state_words(const float* state, int64_t rows, int64_t columns, uint32_t* out) {
  const int64_t width = words(kind, columns);
  for (int64_t p = 0; p < columns; p += kPanel) {
    const float* panel = state + p * rows;
    for (int64_t n = 0; n < rows; ++n)
      for (int64_t j = 0; j < kPanel; j += 2 * kLanes)
        store_words<kind>(load(panel + n * kPanel + j), load(panel + n * kPanel + j + kLanes),
                          out + n * width, p + j);
  }
}

void state_words_any(WordKind kind, const float* state, int64_t rows, int64_t columns,
                     uint32_t* out) {
  is_paired(kind) ? state_words<WordKind::bf16_pair>(state, rows, columns, out)
                  : state_words<WordKind::f32>(state, rows, columns, out);
}

template <class T>
float product_of_states(const float* state, int64_t rows, int64_t columns, const T* other) {
  V sums[4] = {hn::Zero(kFloats), hn::Zero(kFloats), hn::Zero(kFloats), hn::Zero(kFloats)};
  for (int64_t p = 0; p < columns; p += kPanel) {
    for (int64_t n = 0; n < rows; ++n) {
      const float* row = state + p * rows + n * kPanel;
      for (int64_t j = 0; j < kPanel; j += 2 * kLanes) {
        const VectorPair a = load_pair_for<T>(row + j, Whole{}),
                         b = load_pair(other + n * columns + p + j);
        V* sum = sums + n % 2 * 2;
        sum[0] = hn::MulAdd(a.a, b.a, sum[0]);
        sum[1] = hn::MulAdd(a.b, b.b, sum[1]);
      }
    }
  }
  return add_lanes(sums);
}

float state_product_any(WordKind kind, const float* state, int64_t rows, int64_t columns,
                        const uint32_t* other) {
  return is_paired(kind)
             ? product_of_states(state, rows, columns, reinterpret_cast<const bf16*>(other))
             : product_of_states(state, rows, columns, reinterpret_cast<const float*>(other));
}

template <class T>
void outputs(const ScanOutputs<float>& rows) {
  for (int64_t i = 0; i < rows.rows; ++i) {
    const T* x = reinterpret_cast<const T*>(rows.x.base) + i * rows.x.stride;
    T* out = const_cast<T*>(reinterpret_cast<const T*>(rows.out.base)) + i * rows.out.stride;
    const float *inside = rows.inside + i * rows.stride, *before = rows.before + i * rows.stride;
    for_vectors(0, rows.width, [&](int64_t p, auto n) {
      V y = hn::MulAdd(set(rows.d), load(x + p, n), load(inside + p, n));
      if (i < rows.inherits) y = hn::MulAdd(set(rows.factors[i]), load(before + p, n), y);
      store(hn::Add(y, hn::Zero(kFloats)), out + p, n);  // a zero is +0
    });
  }
}

void outputs_any(const ScanOutputs<float>& rows) {
  rows.x.type == DType::f32 ? outputs<float>(rows) : outputs<bf16>(rows);
}

template <class T>
double gradients_of_inputs(const InputGradients<float>& rows) {
  double total = 0;
  for (int64_t j = 0; j < rows.rows; ++j) {
    const T* x = reinterpret_cast<const T*>(rows.x.base) + j * rows.x.stride;
    const T* dy = reinterpret_cast<const T*>(rows.dy.base) + j * rows.dy.stride;
    T* dx = const_cast<T*>(reinterpret_cast<const T*>(rows.dx.base)) + j * rows.dx.stride;
    const float* inside = rows.inside + j * rows.stride;
    const float* after = rows.after == nullptr ? nullptr : rows.after + j * rows.stride;
    V with_dy = hn::Zero(kFloats), with_after = hn::Zero(kFloats);
    for_vectors(0, rows.width, [&](int64_t p, auto n) {
      const V value = load(x + p, n), slope = load(dy + p, n);
      with_dy = hn::MulAdd(value, slope, with_dy);
      V sum = hn::MulAdd(set(rows.d), slope, load(inside + p, n));
      if (after != nullptr) {
        const V later = load(after + p, n);
        with_after = hn::MulAdd(value, later, with_after);
        sum = hn::MulAdd(set(rows.weights[j]), later, sum);
      }
      store(sum, dx + p, n);
    });
    rows.sums[j] = add_halves(kFloats, with_after);
    total += static_cast<double>(add_halves(kFloats, with_dy));
  }
  return total;
}

double gradients_any(const InputGradients<float>& rows) {
  return rows.x.type == DType::f32 ? gradients_of_inputs<float>(rows)
                                   : gradients_of_inputs<bf16>(rows);
}

void add_to_columns(const ColumnSums64<float>& c) {
  const bool pairs = is_paired(c.kind);
  const int64_t panel = words(c.kind, c.rows) * kPanel;
  for (int64_t i = 0; i < kTokens; i += kLanes) {
    const V factor = load(c.factors + i);
    const uint32_t* with = c.with == nullptr ? nullptr : c.with + i / kPanel * panel + i % kPanel;
    V dot = hn::Zero(kFloats);
    for (int64_t n = 0; n < c.rows; ++n) {
      const V value = load(c.values + n * kTokens + i);
      float* sum = c.sums + n * kTokens + i;
      store(hn::MulAdd(factor, value, load(sum)), sum);
      if (with == nullptr) continue;
      auto word = hn::LoadU(Words(), with + (pairs ? n / 2 : n) * kPanel);
      if (pairs)
        word = n % 2 == 0 ? hn::ShiftLeft<16>(word) : hn::And(word, hn::Set(Words(), 0xffff0000u));
      dot = hn::MulAdd(hn::BitCast(kFloats, word), value, dot);
    }
    if (with != nullptr) store(dot, c.dots + i);
  }
}

void rounded_rows(WordKind kind, const float* values, int64_t count, std::byte* out) {
  for_vectors(0, count, [&](int64_t i, auto n) {
    is_paired(kind) ? store(load(values + i, n), reinterpret_cast<bf16*>(out) + i, n)
                    : store(load(values + i, n), reinterpret_cast<float*>(out) + i, n);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(steps_of);
HWY_EXPORT(step_gradients);
HWY_EXPORT(exps);
HWY_EXPORT(mask_all_rows);
HWY_EXPORT(mask_gradients);
HWY_EXPORT(weigh_any);
HWY_EXPORT(pair_rows);
HWY_EXPORT(scale);
HWY_EXPORT(state_words_any);
HWY_EXPORT(state_product_any);
HWY_EXPORT(outputs_any);
HWY_EXPORT(gradients_any);
HWY_EXPORT(add_to_columns);
HWY_EXPORT(rounded_rows);

void scan_steps(const ScanLimits<float>& limits, const float* dt, int64_t count, float* steps) {
  HWY_DYNAMIC_DISPATCH(steps_of)(limits, dt, count, steps);
}
void scan_step_gradients(const ScanLimits<float>& limits, const float* dt, const float* dsteps,
                         int64_t count, float* ddt) {
  HWY_DYNAMIC_DISPATCH(step_gradients)(limits, dt, dsteps, count, ddt);
}
void scan_exp(const float* y, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(exps)(y, count, out);
}
void mask_rows(const MaskRows<float>& rows) { HWY_DYNAMIC_DISPATCH(mask_all_rows)(rows); }
void mask_gradient(const MaskGradient<float>& rows) { HWY_DYNAMIC_DISPATCH(mask_gradients)(rows); }
void weighted_panels(WordKind kind, const MatrixRows& from, const float* weights, int64_t rows,
                     int64_t padded, int64_t elements, int64_t panel, uint32_t* out) {
  HWY_DYNAMIC_DISPATCH(weigh_any)(kind, from, weights, rows, padded, elements, panel, out);
}
void pair_state_rows(const float* panel, int64_t rows, uint32_t* pairs) {
  HWY_DYNAMIC_DISPATCH(pair_rows)(panel, rows, pairs);
}
void scale_values(float* values, int64_t count, float factor) {
  HWY_DYNAMIC_DISPATCH(scale)(values, count, factor);
}
void state_to_words(WordKind kind, const float* state, int64_t rows, int64_t columns,
                    uint32_t* out) {
  HWY_DYNAMIC_DISPATCH(state_words_any)(kind, state, rows, columns, out);
}
float state_product(WordKind kind, const float* state, int64_t rows, int64_t columns,
                    const uint32_t* words) {
  return HWY_DYNAMIC_DISPATCH(state_product_any)(kind, state, rows, columns, words);
}
void scan_outputs(const ScanOutputs<float>& rows) { HWY_DYNAMIC_DISPATCH(outputs_any)(rows); }
double input_gradients(const InputGradients<float>& rows) {
  return HWY_DYNAMIC_DISPATCH(gradients_any)(rows);
}
void add_columns(const ColumnSums64<float>& columns) {
  HWY_DYNAMIC_DISPATCH(add_to_columns)(columns);
}
void round_rows(WordKind kind, const float* values, int64_t count, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(rounded_rows)(kind, values, count, out);
}

}  // namespace megatron::kernels::cpu
#endif
