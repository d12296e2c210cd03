// Shared by the functions of nn::Builder that add adapters.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "parallel/placement.h"

namespace megatron::nn {

inline const parallel::Division* division_of(const parallel::ParameterSpec& spec, int axis) {
  const auto found = std::ranges::find(spec.divisions, axis, &parallel::Division::axis);
  return found == spec.divisions.end() ? nullptr : &*found;
}

// The blocks of a division of rows that make up [begin, begin + rows), as a division of these rows
// alone, and the first of them that this rank holds, as a row of its part of the matrix.
struct RowsOfPart {
  parallel::Division division;
  int64_t local_begin = 0;
};
inline RowsOfPart rows_of_part(const parallel::Division& whole, int64_t begin, int64_t rows) {
  RowsOfPart part{.division = whole};
  part.division.blocks.clear();
  int64_t at = 0, taken = 0;
  for (const int64_t block : whole.blocks) {
    if (at >= begin && at + block <= begin + rows) {
      part.division.blocks.push_back(block);
      taken += block;
    } else if (at + block <= begin) {
      part.local_begin += parallel::share_of(block, whole.ranks, whole.rank).size;
    }
    at += block;
  }
  MG_ASSERT(taken == rows);
  return part;
}

// Uniform with the bound that PyTorch's linear layers of this many inputs have.
inline parallel::Init uniform_by(int64_t in) {
  return {parallel::Init::Kind::uniform, 1 / std::sqrt(static_cast<double>(in))};
}

}  // namespace megatron::nn
