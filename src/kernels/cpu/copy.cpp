#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/table.h"
#include "tensor/element_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/copy.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

// Gives the same bits as f16's conversions (base/dtype.h).
HWY_INLINE V load(const f16* p) {
  const Words words;
  const hn::RebindToSigned<Words> integers;
  const auto bits = hn::PromoteTo(words, hn::LoadU(Halves(), reinterpret_cast<const uint16_t*>(p)));
  const auto magnitude = hn::And(bits, hn::Set(words, 0x7fffu));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto normal = hn::Add(shifted, hn::Set(words, 0x38000000u));
  const auto special = hn::Or(shifted, hn::Set(words, 0x7f800000u));
  const auto subnormal = hn::BitCast(
      words, hn::Mul(hn::ConvertTo(kFloats, hn::BitCast(integers, magnitude)), set(0x1p-24f)));
  const auto finite = hn::IfThenElse(hn::Lt(magnitude, hn::Set(words, 0x400u)), subnormal, normal);
  const auto value = hn::IfThenElse(hn::Gt(magnitude, hn::Set(words, 0x7bffu)), special, finite);
  return hn::BitCast(kFloats, hn::Or(value, sign));
}
HWY_INLINE void store(V v, f16* p) {
  const Words words;
  const auto bits = hn::BitCast(words, v);
  const auto magnitude = hn::And(bits, hn::Set(words, 0x7fffffffu));
  const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(words, 1u));
  const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(words, 0xfffu)), odd);
  const auto normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(words, 0x38000000u)));
  const auto aligned = hn::Add(hn::BitCast(kFloats, magnitude), set(0.5f));  // last place is 2^-24
  const auto subnormal = hn::Sub(hn::BitCast(words, aligned), hn::Set(words, 0x3f000000u));
  const auto finite =
      hn::IfThenElse(hn::Lt(magnitude, hn::Set(words, 0x38800000u)), subnormal, normal);
  const auto special = hn::IfThenElse(hn::Gt(magnitude, hn::Set(words, 0x7f800000u)),
                                      hn::Set(words, 0x7e00u), hn::Set(words, 0x7c00u));
  const auto value =
      hn::IfThenElse(hn::Gt(magnitude, hn::Set(words, 0x477fefffu)), special, finite);
  hn::StoreU(hn::TruncateTo(Halves(), hn::Or(value, sign)), Halves(),
             reinterpret_cast<uint16_t*>(p));
}
HWY_INLINE V load(const f16* p, Whole) { return load(p); }
HWY_INLINE V load(const f16* p, Part part) {
  f16 buffer[kLanes];
  std::memcpy(static_cast<void*>(buffer), p, static_cast<size_t>(part.n) * sizeof(f16));
  return load(buffer);
}
HWY_INLINE void store(V v, f16* p, Whole) { store(v, p); }
HWY_INLINE void store(V v, f16* p, Part part) {
  f16 buffer[kLanes];
  store(v, buffer);
  std::memcpy(static_cast<void*>(p), buffer, static_cast<size_t>(part.n) * sizeof(f16));
}

}  // namespace

void stream_bytes(const uint8_t* from, uint8_t* to, int64_t count, const uint8_t* ahead) {
  const hn::ScalableTag<uint8_t> bytes;
  constexpr int64_t kBytes = hn::MaxLanes(bytes);
  for (int64_t line = 0; line < count; line += kCacheLine) {
    __builtin_prefetch(ahead + line);
    for (int64_t i = line; i < line + kCacheLine; i += kBytes)
      hn::Stream(hn::LoadU(bytes, from + i), bytes, to + i);
  }
}
void widen(const bf16* x, Output<float> out, int64_t count) {
  for_vectors(0, count, [&](int64_t i, auto n) { store(load(x + i, n), out + i, n); });
}
void narrow(const float* x, Output<bf16> out, int64_t count) {
  for_vectors(0, count, [&](int64_t i, auto n) { store(load(x + i, n), out + i, n); });
}
void widen_f16(const f16* x, float* out, int64_t count) {
  for_vectors(0, count, [&](int64_t i, auto n) { store(load(x + i, n), out + i, n); });
}
void narrow_f16(const float* x, f16* out, int64_t count) {
  for_vectors(0, count, [&](int64_t i, auto n) { store(load(x + i, n), out + i, n); });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(stream_bytes);
HWY_EXPORT(widen);
HWY_EXPORT(narrow);
HWY_EXPORT(widen_f16);
HWY_EXPORT(narrow_f16);

namespace {

struct Dim {
  int64_t size, from, to;  // elements; strides of x and of out
};

// Dimensions of a copy, the last with out's smallest stride. Drops those of size 1 and merges
// adjacent ones if both tensors allow it.
struct Layout {
  std::array<Dim, kMaxRank> dims{};
  int rank = 0;
};

Layout layout_of(const Tensor& x, const Tensor& out) {
  Layout layout;
  for (int d = 0; d < x.rank(); ++d) {
    const Dim dim{x.size(d), x.stride(d), out.stride(d)};
    if (dim.size == 1) continue;
    if (layout.rank > 0) {
      Dim& last = layout.dims[static_cast<size_t>(layout.rank - 1)];
      if (last.from == dim.size * dim.from && last.to == dim.size * dim.to) {
        last = {last.size * dim.size, dim.from, dim.to};
        continue;
      }
    }
    layout.dims[static_cast<size_t>(layout.rank++)] = dim;
  }
  if (layout.rank == 0) layout.dims[static_cast<size_t>(layout.rank++)] = {1, 1, 1};
  return layout;
}

template <class To, class From>
To converted(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_arithmetic_v<From> && std::is_arithmetic_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_arithmetic_v<To>) {
    return static_cast<To>(static_cast<float>(value));
  } else {
    return To(static_cast<float>(value));
  }
}

// Copies a run and prefetches the one at `ahead`, or only its first 4 KB if the output is not
// streamed; none if ahead is x.
template <class From, class To>
void copy_run(const From* x, Output<To> to, int64_t n, const From* ahead) {
  constexpr int64_t kMaxAhead = 4096;  // bytes
  constexpr bool kSame = std::is_same_v<From, To>;
  To* out = to.p;
  const int64_t bytes = n * static_cast<int64_t>(sizeof(From));
  const int64_t whole = kSame && to.streamed ? bytes / kCacheLine * kCacheLine : 0;
  if (whole == 0 && ahead != x) prefetch(ahead, std::min(bytes, kMaxAhead));
  if constexpr (kSame) {
    if (whole > 0) copy_streamed(x, out, whole, ahead);
    std::memmove(reinterpret_cast<std::byte*>(out) + whole,
                 reinterpret_cast<const std::byte*>(x) + whole, static_cast<size_t>(bytes - whole));
  } else if constexpr (std::is_same_v<From, bf16> && std::is_same_v<To, float>) {
    HWY_DYNAMIC_DISPATCH(widen)(x, to, n);
  } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, bf16>) {
    HWY_DYNAMIC_DISPATCH(narrow)(x, to, n);
  } else if constexpr (std::is_same_v<From, f16> && std::is_same_v<To, float>) {
    HWY_DYNAMIC_DISPATCH(widen_f16)(x, out, n);
  } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, f16>) {
    HWY_DYNAMIC_DISPATCH(narrow_f16)(x, out, n);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = converted<To>(x[i]);
  }
}

// Copies rows of consecutive elements. The hardware prefetcher cannot predict rows that are far
// apart.
template <class From, class To>
void copy_rows(const From* x, Output<To> out, const Dim& row, int64_t rows, int64_t columns) {
  constexpr int64_t kBytesAhead = 3072;
  const int64_t row_bytes = columns * static_cast<int64_t>(sizeof(From));
  // With few rows, most of them can still be prefetched.
  const int64_t ahead = std::min(ceil_div(kBytesAhead, row_bytes), ceil_div(rows, 4));
  for (int64_t r = 0; r < rows; ++r, x += row.from) {
    const bool asks = row.from != columns && r + ahead < rows;
    copy_run(x, out + r * row.to, columns, asks ? x + ahead * row.from : x);
  }
}

constexpr int64_t kSquare = 32;  // rows and columns

// Copies rows x columns elements. The column index is out's innermost. Each tensor is traversed
// along its own contiguous direction, through a square in the L1 cache.
template <class From, class To>
void copy_tile(const From* x, Output<To> out, const Dim& row, const Dim& column, int64_t rows,
               int64_t columns) {
  if (column.from == 1 && column.to == 1) {
    copy_rows(x, out, row, rows, columns);
    return;
  }
  for (int64_t c0 = 0; c0 < columns; c0 += kSquare) {
    const int64_t width = std::min(kSquare, columns - c0);
    for (int64_t r0 = 0; r0 < rows; r0 += kSquare) {
      const int64_t height = std::min(kSquare, rows - r0);
      const From* from = x + r0 * row.from + c0 * column.from;
      const Output<To> to = out + r0 * row.to + c0 * column.to;
      To square[kSquare][kSquare];
      for (int64_t c = 0; c < width; ++c) {
        const From* source = from + c * column.from;
        for (int64_t r = 0; r < height; ++r) square[r][c] = converted<To>(source[r * row.from]);
      }
      for (int64_t r = 0; r < height; ++r) {
        To* target = to.p + r * row.to;
        for (int64_t c = 0; c < width; ++c) target[c * column.to] = square[r][c];
      }
    }
  }
}

// Offsets in x and out of the elements of `dims` with this index.
struct Place {
  int64_t from = 0, to = 0;
};
Place place(std::span<const Dim> dims, int64_t index) {
  Place at;
  for (size_t d = dims.size(); d-- > 0;) {
    at.from += index % dims[d].size * dims[d].from;
    at.to += index % dims[d].size * dims[d].to;
    index /= dims[d].size;
  }
  return at;
}

int64_t elements(std::span<const Dim> dims) {
  int64_t count = 1;
  for (const Dim& dim : dims) count *= dim.size;
  return count;
}

// The largest power of two up to kBlockElements that divides all strides of out.
int64_t common_step(const Dim& row, std::span<const Dim> outer) {
  int64_t step = std::gcd(kBlockElements, row.to);
  for (const Dim& dim : outer) step = std::gcd(step, dim.to);
  return step;
}

template <class From, class To>
void copy_typed(const CopyArgs& args, Stream& stream) {
  Layout layout = layout_of(args.x, args.out);
  const Dim column = layout.dims[static_cast<size_t>(--layout.rank)];
  Dim row{1, 0, 0};
  if (layout.rank > 0) {
    // The dimension with x's smallest stride, or out's next to last one if columns are contiguous.
    int chosen = layout.rank - 1;
    for (int d = 0; d < layout.rank && column.from != 1; ++d) {
      if (std::abs(layout.dims[static_cast<size_t>(d)].from) <
          std::abs(layout.dims[static_cast<size_t>(chosen)].from))
        chosen = d;
    }
    row = layout.dims[static_cast<size_t>(chosen)];
    for (int d = chosen; d + 1 < layout.rank; ++d)
      layout.dims[static_cast<size_t>(d)] = layout.dims[static_cast<size_t>(d + 1)];
    --layout.rank;
  }
  const std::span<const Dim> outer(layout.dims.data(), static_cast<size_t>(layout.rank));
  const bool runs = column.from == 1 && column.to == 1;
  const int64_t width = std::min(column.size, runs ? kBlockElements : int64_t{256});
  const int64_t height = std::min(row.size, std::max<int64_t>(1, kBlockElements / width));
  const int64_t row_tiles = ceil_div(row.size, height), column_tiles = ceil_div(column.size, width);
  const From* x = args.x.data<From>();
  const Output<To> out{args.out.data<To>(),
                       column.to == 1 && is_streamed(args.out, common_step(row, outer), {x})};
  for_each_block(stream, elements(outer) * row_tiles * column_tiles, [&](int64_t item, int) {
    const int64_t c = item % column_tiles * width, r = item / column_tiles % row_tiles * height;
    const Place at = place(outer, item / column_tiles / row_tiles);
    copy_tile(x + at.from + r * row.from + c * column.from,
              out + at.to + r * row.to + c * column.to, row, column, std::min(height, row.size - r),
              std::min(width, column.size - c));
  });
}

}  // namespace

void copy_streamed(const void* from, void* to, int64_t bytes, const void* ahead) {
  HWY_DYNAMIC_DISPATCH(stream_bytes)
  (static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to), bytes,
   static_cast<const uint8_t*>(ahead));
}

void copy(const CopyArgs& args, Stream& stream) {
  if (args.x.elements() == 0) return;
  const auto same = [&](auto type) { copy_typed<decltype(type), decltype(type)>(args, stream); };
  switch (args.x.dtype()) {
    case DType::i64: return same(int64_t{});
    case DType::i32: return same(int32_t{});
    case DType::i16: return same(int16_t{});
    case DType::i8: return same(int8_t{});
    case DType::u16: return same(uint16_t{});
    case DType::u8: return same(uint8_t{});
    default: break;
  }
  for_floating_type(args.x.dtype(), [&](auto from) {
    for_floating_type(args.out.dtype(),
                      [&](auto to) { copy_typed<decltype(from), decltype(to)>(args, stream); });
  });
}

}  // namespace megatron::kernels::cpu
#endif
