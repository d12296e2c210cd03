#include "checkpoint/tensor_copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace megatron::checkpoint {
namespace {

using parallel::CanonicalTensor;

constexpr int64_t kDecoded = 4096;  // elements of a quantized tensor at a time
constexpr int64_t kTile = 32;       // rows and columns of a transposed copy at a time

// Copies n elements that are `from_step` and `to_step` elements apart. Neither side need be
// aligned.
using CopyRow = void (*)(const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step,
                         int64_t n);

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) return value;
  else if constexpr (std::is_class_v<From>) return To(static_cast<float>(value));
  else if constexpr (std::is_class_v<To>) return To(static_cast<float>(value));
  else return static_cast<To>(value);
}

template <class From, class To>
void copy_row(const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step, int64_t n) {
  if (std::is_same_v<From, To> && from_step == 1 && to_step == 1) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(To));
    return;
  }
  constexpr int64_t kFrom = sizeof(From), kTo = sizeof(To);
  for (int64_t i = 0; i < n; ++i) {
    From value;
    std::memcpy(&value, from + i * from_step * kFrom, sizeof value);
    const To result = convert<To>(value);
    std::memcpy(to + i * to_step * kTo, &result, sizeof result);
  }
}

template <class From>
CopyRow conversion_from(DType to) {
  switch (to) {
    case DType::f64: return copy_row<From, double>;
    case DType::f32: return copy_row<From, float>;
    case DType::bf16: return copy_row<From, bf16>;
    case DType::f16: return copy_row<From, f16>;
    default: MG_ASSERT(false);
  }
}

CopyRow conversion(DType from, DType to) {
  MG_ASSERT(convertible(from, to));
  if (from == to) {  // copies bits of any type
    switch (size_of(from)) {
      case 8: return copy_row<uint64_t, uint64_t>;
      case 4: return copy_row<uint32_t, uint32_t>;
      case 2: return copy_row<uint16_t, uint16_t>;
      default: return copy_row<uint8_t, uint8_t>;
    }
  }
  switch (from) {
    case DType::f64: return conversion_from<double>(to);
    case DType::f32: return conversion_from<float>(to);
    case DType::bf16: return conversion_from<bf16>(to);
    case DType::f16: return conversion_from<f16>(to);
    default: MG_ASSERT(false);
  }
}

// One side of a copy.
struct Source {
  const std::byte* data;
  DType dtype;
  Matrix matrix;
};

struct Target {
  std::byte* data;
  DType dtype;
  Matrix matrix;
};

// Copies a transposed matrix: tiles are converted along the source's memory and then written along
// the target's, so that every cache line is used whole. Requires from.column == 1 and to.row == 1.
void copy_transposed(int64_t rows, int64_t columns, const Source& from, const Target& to) {
  const CopyRow convert_row = conversion(from.dtype, to.dtype),
                move_row = conversion(to.dtype, to.dtype);
  const int64_t from_size = size_of(from.dtype), to_size = size_of(to.dtype);
  std::array<std::byte, kTile * kTile * sizeof(double)> tile;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    const int64_t height = std::min(kTile, rows - r0);
    for (int64_t c0 = 0; c0 < columns; c0 += kTile) {
      const int64_t width = std::min(kTile, columns - c0);
      const std::byte* const source =
          from.data + (from.matrix.begin + r0 * from.matrix.row + c0) * from_size;
      std::byte* const target = to.data + (to.matrix.begin + c0 * to.matrix.column + r0) * to_size;
      for (int64_t r = 0; r < height; ++r) {
        convert_row(source + r * from.matrix.row * from_size, 1, tile.data() + r * kTile * to_size,
                    1, width);
      }
      for (int64_t c = 0; c < width; ++c) {
        move_row(tile.data() + c * to_size, kTile, target + c * to.matrix.column * to_size, 1,
                 height);
      }
    }
  }
}

void copy_block(const Block& block, Source from, Target to) {
  if (block.rows == 0 || block.columns == 0) return;
  if (from.matrix.column == 1 && to.matrix.column == 1) {
    const CopyRow copy = conversion(from.dtype, to.dtype);
    for (int64_t r = 0; r < block.rows; ++r) {
      copy(from.data + (from.matrix.begin + r * from.matrix.row) * size_of(from.dtype), 1,
           to.data + (to.matrix.begin + r * to.matrix.row) * size_of(to.dtype), 1, block.columns);
    }
  } else if (from.matrix.column == 1) {
    copy_transposed(block.rows, block.columns, from, to);
  } else {
    std::swap(from.matrix.row, from.matrix.column);
    std::swap(to.matrix.row, to.matrix.column);
    copy_transposed(block.columns, block.rows, from, to);
  }
}

Source source_of(const Tensor& value, const Matrix& local) {
  MG_ASSERT(value.is_contiguous());
  return {static_cast<const std::byte*>(value.raw()), value.dtype(), local};
}

void check_size(const CanonicalTensor& part, size_t bytes, DType dtype) {
  MG_ASSERT(static_cast<int64_t>(bytes) == part.global.elements() * size_of(dtype));
}

}  // namespace

bool convertible(DType from, DType to) {
  return from == to || (is_floating(from) && is_floating(to));
}

int64_t read_part(const CanonicalTensor& part, std::span<const std::byte> stored, DType dtype,
                  const HeldTensor& held) {
  check_size(part, stored.size(), dtype);
  const Tensor& value = held.value;
  MG_ASSERT(value.is_contiguous());
  int64_t elements = 0;
  for (const Block& b : blocks_of(part, held.shape, held.begin, value.elements())) {
    copy_block(b, {stored.data(), dtype, b.stored},
               {static_cast<std::byte*>(value.raw()), value.dtype(), b.local});
    elements += b.elements();
  }
  return elements;
}

int64_t read_part(const CanonicalTensor& part, const PackedTensor& stored, const HeldTensor& held) {
  MG_ASSERT(part.stored_shape() == stored.info().shape);
  CanonicalTensor in_order = part;  // its blocks run along the stored values
  in_order.transposed = part.transposed != stored.transposed();
  const Tensor& value = held.value;
  MG_ASSERT(value.is_contiguous());
  const CopyRow copy = conversion(DType::bf16, value.dtype());
  std::array<bf16, kDecoded> decoded;
  int64_t elements = 0;
  for (const Block& b : blocks_of(in_order, held.shape, held.begin, value.elements())) {
    for (int64_t r = 0; r < b.rows; ++r) {
      for (int64_t c = 0; c < b.columns; c += kDecoded) {
        const int64_t n = std::min(kDecoded, b.columns - c);
        stored.decode(b.stored.begin + r * b.stored.row + c,
                      std::span(decoded).first(static_cast<size_t>(n)));
        copy(reinterpret_cast<const std::byte*>(decoded.data()), 1,
             static_cast<std::byte*>(value.raw()) +
                 (b.local.begin + r * b.local.row + c * b.local.column) * size_of(value.dtype()),
             b.local.column, n);
      }
    }
    elements += b.elements();
  }
  return elements;
}

void read_part(const CanonicalTensor& part, std::span<const std::byte> stored, DType dtype,
               const Tensor& value) {
  read_part(part, stored, dtype, {"", nullptr, value, value.shape(), 0});
}

void write_block(const Block& block, const Tensor& value, std::span<std::byte> stored,
                 DType dtype) {
  copy_block(block, source_of(value, block.local), {stored.data(), dtype, block.stored});
}

void pack_block(const Block& block, const Tensor& value, int64_t first, int64_t n, std::byte* out,
                DType dtype) {
  const Source whole = source_of(value, block.local);
  for_each_rectangle(block.rows, block.columns, block.columns, first, first + n,
                     [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
                       Source from = whole;
                       from.matrix.begin += row * from.matrix.row + column * from.matrix.column;
                       const Matrix packed{row * block.columns + column - first, block.columns, 1};
                       copy_block({rows, columns, {}, {}}, from, {out, dtype, packed});
                     });
}

}  // namespace megatron::checkpoint
