#include <algorithm>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

template <class A, class B, class Out>
void add_typed(const AddArgs& args, Stream& stream) {
  const A* a = args.a.data<A>();
  const B* b = args.b.data<B>();
  const Output<Out> out = output_of<Out>(
      args.out, args.b.rank() < args.a.rank() ? args.b.elements() : kBlockElements, {a, b});
  if (args.b.rank() < args.a.rank()) {
    const int64_t width = args.b.elements();
    for_blocks(stream, args.a.size(0), rows_per_block(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for_vectors(0, width, [&](int64_t i, auto n) {
          store(hn::Add(load(a + row * width + i, n), load(b + i, n)), out + row * width + i, n);
        });
      }
    });
    return;
  }
  for_blocks(stream, args.out.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
    for_vectors(begin, end, [&](int64_t i, auto n) {
      store(hn::Add(load(a + i, n), load(b + i, n)), out + i, n);
    });
  });
}

void add_elements(const AddArgs& args, Stream& stream) {
  for_storage_type("add", args.a.dtype(), [&](auto a) {
    for_storage_type("add", args.b.dtype(), [&](auto b) {
      for_storage_type("add", args.out.dtype(), [&](auto out) {
        add_typed<decltype(a), decltype(b), decltype(out)>(args, stream);
      });
    });
  });
}

// Writes `lines` copies of the cache line with streaming stores.
void stream_line(const uint8_t* line, uint8_t* to, int64_t lines) {
  const hn::ScalableTag<uint8_t> bytes;
  constexpr int64_t kBytes = hn::MaxLanes(bytes);
  for (int64_t end = lines * kCacheLine, i = 0; i < end; i += kBytes)
    hn::Stream(hn::Load(bytes, line + i % kCacheLine), bytes, to + i);
}

// partial[begin, end) = sum of `rows` rows of x, in ascending order. The sums stay in the L1 cache,
// and x is read in memory order.
template <class T>
void sum_rows(const T* x, int64_t rows, int64_t stride, int64_t begin, int64_t end,
              float* partial) {
  ColumnSums<T> sums(partial, begin, end);
  for (int64_t row = 0; row < rows; ++row, x += stride) {
    for_pairs(begin, end, [&](int64_t i, auto n) {
      prefetch(x + i + 2 * kElementsAhead<T>, kPairBytes<T>);
      const VectorPair sum = sums.at(i, n), v = load_pair(x + i, n);
      sums.set(i, {hn::Add(sum.a, v.a), hn::Add(sum.b, v.b)}, n);
    });
  }
  sums.in_order();
}

void sum_columns(const ColumnSumArgs& args, Stream& stream) {
  constexpr int64_t kColumns = 4096;
  for_storage_type("column_sum", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const RowBlocks blocks(args.x.size(0));
    const int64_t width = args.x.size(1), chunks = ceil_div(width, kColumns);
    const Tensor partials = column_sum_scratch(args, stream);
    for_each_block(stream, blocks.count * chunks, [&](int64_t item, int) {
      const int64_t block = item / chunks, begin = item % chunks * kColumns;
      const int64_t first = block * blocks.height;
      sum_rows(x + first * width, std::min(blocks.height, blocks.rows - first), width, begin,
               std::min(width, begin + kColumns), partials.data<float>() + block * width);
    });
    add_partial_rows(partials, args.out, stream);
  });
}

// Sum of squares of a block in eight f64 sums; element i goes to sum i % 8. If T is f32, each half
// of a vector provides half of the eight.
template <class T>
double block_sum_of_squares(const T* x, int64_t n) {
  constexpr int64_t kDoubles = HWY_LANES(double), kVectors = 8 / kDoubles;
  const hn::ScalableTag<double> doubles;
  const auto load_doubles = [&](const T* p) {
    if constexpr (sizeof(T) == sizeof(double)) {
      return hn::LoadU(doubles, p);
    } else {
      return hn::PromoteTo(doubles, hn::LoadU(hn::Rebind<float, decltype(doubles)>(), p));
    }
  };
  hn::Vec<decltype(doubles)> sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(doubles);
  const auto add_eight = [&](const T* p) {
    for (int64_t k = 0; k < kVectors; ++k) {
      const auto v = load_doubles(p + k * kDoubles);
      sums[k] = hn::Add(sums[k], hn::Mul(v, v));
    }
  };
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __builtin_prefetch(x + i + kElementsAhead<T>);
    add_eight(x + i);
  }
  if (i < n) {
    T last[8] = {};
    std::copy(x + i, x + n, last);
    add_eight(last);
  }
  double s[8];
  for (int64_t k = 0; k < kVectors; ++k) hn::StoreU(sums[k], doubles, s + k * kDoubles);
  return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

void sum_squares(const SumOfSquaresArgs& args, Stream& stream) {
  const auto run = [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    double* partial = args.partial.data<double>();
    for_blocks(stream, args.x.elements(), 2 * kNormBlock, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += kNormBlock) {
        partial[at / kNormBlock] = block_sum_of_squares(x + at, std::min(kNormBlock, end - at));
      }
    });
  };
  return args.x.dtype() == DType::f64 ? run(double{}) : run(float{});
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(add_elements);
HWY_EXPORT(stream_line);
HWY_EXPORT(sum_columns);
HWY_EXPORT(sum_squares);

namespace {

template <class T>
void fill_typed(const FillArgs& args, Stream& stream) {
  T* out = args.out.data<T>();
  T value;
  if constexpr (std::is_class_v<T>) {
    value = T(static_cast<float>(args.value));
  } else {
    value = static_cast<T>(args.value);
  }
  const bool streamed = is_streamed(args.out, kBlockElements, {});
  constexpr int64_t kInLine = kCacheLine / static_cast<int64_t>(sizeof(T));
  alignas(kCacheLine) T line[kInLine];
  std::fill_n(line, kInLine, value);
  for_blocks(stream, args.out.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
    if (streamed) {
      const int64_t lines = (end - begin) / kInLine;
      HWY_DYNAMIC_DISPATCH(stream_line)
      (reinterpret_cast<const uint8_t*>(line), reinterpret_cast<uint8_t*>(out + begin), lines);
      begin += lines * kInLine;
    }
    std::fill(out + begin, out + end, value);
  });
}

template <class X, class W>
double ordered_sum(const X* x, const W* weights, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += weights == nullptr ? static_cast<double>(x[i])
                              : static_cast<double>(weights[i]) * static_cast<double>(x[i]);
  }
  return sum;
}

template <class X>
double ordered_sum(const X* x, const Tensor& weights, int64_t n) {
  if (!weights.defined()) return ordered_sum<X, float>(x, nullptr, n);
  if (weights.dtype() == DType::f64) return ordered_sum(x, weights.data<double>(), n);
  return ordered_sum(x, weights.data<float>(), n);
}

}  // namespace

void add(const AddArgs& args, Stream& stream) { HWY_DYNAMIC_DISPATCH(add_elements)(args, stream); }

void fill(const FillArgs& args, Stream& stream) {
  switch (args.out.dtype()) {
    case DType::f64: return fill_typed<double>(args, stream);
    case DType::f32: return fill_typed<float>(args, stream);
    case DType::bf16: return fill_typed<bf16>(args, stream);
    case DType::f16: return fill_typed<f16>(args, stream);
    case DType::i64: return fill_typed<int64_t>(args, stream);
    case DType::i32: return fill_typed<int32_t>(args, stream);
    case DType::i16: return fill_typed<int16_t>(args, stream);
    case DType::i8: return fill_typed<int8_t>(args, stream);
    case DType::u16: return fill_typed<uint16_t>(args, stream);
    case DType::u8: return fill_typed<uint8_t>(args, stream);
  }
}

Tensor column_sum_scratch(const ColumnSumArgs& args, Stream& stream) {
  return partial_rows(RowBlocks(args.x.size(0)), args.x.size(1), stream);
}

void column_sum(const ColumnSumArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(sum_columns)(args, stream);
}

void sum(const SumArgs& args, Stream&) {
  const int64_t n = args.x.elements();
  *args.out.data<double>() = args.x.dtype() == DType::f64
                                 ? ordered_sum(args.x.data<double>(), args.weights, n)
                                 : ordered_sum(args.x.data<float>(), args.weights, n);
}

void sum_of_squares(const SumOfSquaresArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(sum_squares)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
