#include "checkpoint/part_copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace megatron::checkpoint {
namespace {

using parallel::Part;
using parallel::Slice;

constexpr int64_t kTile = 32;  // rows and columns of a transposed copy at a time

// n elements, `from_step` and `to_step` elements apart. Neither side need be aligned.
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
  if (from == to) {  // the bits, whatever they mean
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

// Sizes before, at and after the axis. A 0-d tensor is one of one element.
struct Extent {
  int64_t outer = 1, length = 1, inner = 1;
};

Extent extent(const Shape& shape, int axis) {
  MG_ASSERT(axis >= 0 && axis < std::max(shape.rank(), 1));
  Extent e;
  for (int d = 0; d < axis; ++d) e.outer *= shape[d];
  if (shape.rank() > 0) e.length = shape[axis];
  for (int d = axis + 1; d < shape.rank(); ++d) e.inner *= shape[d];
  return e;
}

// A matrix of elements: where it begins and how far its rows and columns are apart, in elements.
struct Matrix {
  int64_t begin = 0, row = 0, column = 1;
};

struct Block {
  int64_t rows = 0, columns = 0;
  Matrix stored, local;
};

// The block of one slice. Stored row-major, a slice is `outer` runs of size * inner elements;
// transposed it is a matrix whose rows are columns on disk.
Block block_of(const Part& part, const Slice& slice, const Extent& global, const Extent& local) {
  MG_ASSERT(slice.size >= 0 && slice.global_begin >= 0 && slice.local_begin >= 0);
  MG_ASSERT(slice.global_begin <= global.length - slice.size &&
            slice.local_begin <= local.length - slice.size);
  Block block;
  block.local = {slice.local_begin * local.inner, local.length * local.inner, 1};
  if (!part.transposed) {
    block.rows = global.outer;
    block.columns = slice.size * global.inner;
    block.stored = {slice.global_begin * global.inner, global.length * global.inner, 1};
    return block;
  }
  MG_ASSERT(part.global.rank() == 2);
  const int64_t out = part.global[0];
  if (part.axis == 0) {
    block.rows = slice.size;
    block.columns = global.inner;
    block.local.row = global.inner;
    block.stored = {slice.global_begin, 1, out};
  } else {
    block.rows = out;
    block.columns = slice.size;
    block.stored = {slice.global_begin * out, 1, out};
  }
  return block;
}

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

// Where one side's rows are the other's columns: tiles are converted along the source's memory and
// then laid out along the target's, so that each line of the cache is used whole. Expects
// from.column == 1 and to.row == 1.
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

template <class F>
void for_each_block(const Part& part, const Tensor& value, F&& f) {
  MG_ASSERT(value.is_contiguous());
  const Extent global = extent(part.global, part.axis), local = extent(value.shape(), part.axis);
  MG_ASSERT(global.outer == local.outer && global.inner == local.inner);
  for (const Slice& slice : part.slices) f(block_of(part, slice, global, local));
}

}  // namespace

bool convertible(DType from, DType to) {
  return from == to || (is_floating(from) && is_floating(to));
}

void read_part(const Part& part, std::span<const std::byte> stored, DType dtype,
               const Tensor& value) {
  MG_ASSERT(static_cast<int64_t>(stored.size()) == part.global.elements() * size_of(dtype));
  std::byte* const local = static_cast<std::byte*>(value.raw());
  for_each_block(part, value, [&](const Block& b) {
    copy_block(b, {stored.data(), dtype, b.stored}, {local, value.dtype(), b.local});
  });
}

void write_part(const Part& part, const Tensor& value, std::span<std::byte> stored, DType dtype) {
  MG_ASSERT(static_cast<int64_t>(stored.size()) == part.global.elements() * size_of(dtype));
  const std::byte* const local = static_cast<const std::byte*>(value.raw());
  for_each_block(part, value, [&](const Block& b) {
    copy_block(b, {local, value.dtype(), b.local}, {stored.data(), dtype, b.stored});
  });
}

int64_t elements_of(const Part& part, const Tensor& value) {
  int64_t elements = 0;
  for_each_block(part, value, [&](const Block& b) { elements += b.rows * b.columns; });
  return elements;
}

}  // namespace megatron::checkpoint
