#include "checkpoint/part_blocks.h"

#include <utility>

#include "base/error.h"

namespace megatron::checkpoint {
namespace {

using parallel::Part;
using parallel::Slice;

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

// The block of one whole slice, whose rows are those of the parameter: `outer` runs of
// size * inner elements, or transposed a matrix whose rows are columns on disk.
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

Block rectangle(const Block& whole, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  Block block = whole;
  block.rows = rows;
  block.columns = columns;
  for (Matrix* m : {&block.stored, &block.local}) m->begin += row * m->row + column * m->column;
  return block;
}

// Rows that are runs on disk, as few as there are.
Block along_disk(Block block) {
  if (block.stored.column != 1) {
    std::swap(block.rows, block.columns);
    std::swap(block.stored.row, block.stored.column);
    std::swap(block.local.row, block.local.column);
  }
  const bool one_run = block.stored.row == block.columns && block.local.column == 1 &&
                       block.local.row == block.columns;
  if (one_run) block.columns *= std::exchange(block.rows, 1);
  return block;
}

}  // namespace

std::vector<Block> blocks_of(const Part& part, const Shape& shape, int64_t begin, int64_t size) {
  MG_ASSERT(begin >= 0 && size >= 0 && begin <= shape.elements() - size);
  const Extent global = extent(part.global, part.axis), local = extent(shape, part.axis);
  MG_ASSERT(global.outer == local.outer && global.inner == local.inner);
  std::vector<Block> blocks;
  for (const Slice& slice : part.slices) {
    const Block whole = block_of(part, slice, global, local);
    const int64_t first = begin - whole.local.begin;
    for_each_rectangle(whole.rows, whole.columns, whole.local.row, first, first + size,
                       [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
                         Block block = rectangle(whole, row, rows, column, columns);
                         block.local.begin -= begin;
                         blocks.push_back(along_disk(block));
                       });
  }
  return blocks;
}

}  // namespace megatron::checkpoint
