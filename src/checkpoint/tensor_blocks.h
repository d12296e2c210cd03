// Locations of a parameter's elements, or of a range of them, in a canonical tensor on disk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "parallel/placement.h"

namespace megatron::checkpoint {

// Element (r, c) has index begin + r * row + c * column.
struct Matrix {
  int64_t begin = 0, row = 0, column = 1;
};

// A matrix of elements present on both sides. stored.column is 1: a row is a contiguous run of the
// tensor on disk.
struct Block {
  int64_t rows = 0, columns = 0;
  Matrix stored, local;
  int64_t elements() const { return rows * columns; }
};

// Returns the part's blocks among elements [begin, begin + size) of a parameter of shape `shape`
// (row-major): disjoint, at most three for each matrix of a product of its slices, or three for
// each of its rows if neither rows nor columns are contiguous on disk. `local` counts
// from `begin`. Placements that do not fit the shape are InternalErrors.
std::vector<Block> blocks_of(const parallel::CanonicalTensor& part, const Shape& shape,
                             int64_t begin, int64_t size);

// For a matrix with row stride `row` >= columns: calls f(first row, rows, first column, columns)
// for the at most three rectangles that make up elements [begin, end).
template <class F>
void for_each_rectangle(int64_t rows, int64_t columns, int64_t row, int64_t begin, int64_t end,
                        F&& f) {
  begin = std::max<int64_t>(begin, 0);
  if (rows == 0 || columns == 0 || begin >= end) return;
  int64_t r = begin / row, first = begin % row;
  if (first >= columns) {
    ++r;
    first = 0;
  }
  const int64_t whole = std::min(end / row, rows);  // rows before this one end before `end`
  const int64_t rest = whole == rows ? 0 : std::min(end % row, columns);
  if (r >= rows || r > whole) return;
  if (r == whole) {
    if (first < rest) f(r, int64_t{1}, first, rest - first);
    return;
  }
  if (first > 0) {
    f(r, int64_t{1}, first, columns - first);
    ++r;
  }
  if (r < whole) f(r, whole - r, int64_t{0}, columns);
  if (rest > 0) f(whole, int64_t{1}, int64_t{0}, rest);
}

}  // namespace megatron::checkpoint
