#include "checkpoint/tensor_blocks.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace megatron::checkpoint {
namespace {

using parallel::CanonicalTensor;
using parallel::Slice;

// `count` indices along a dim, or along several of which the later ones are held whole. Adjacent
// indices are `stored` elements apart on disk and `local` elements apart in the parameter.
struct Level {
  int64_t count = 1, stored = 1, local = 1;
};

// Location of the product of one slice of each axis, as a minimal number of levels from the
// outermost to the innermost dim.
struct Box {
  int64_t stored_begin = 0, local_begin = 0;
  std::vector<Level> levels;
};

void check_slice(const Slice& slice, int64_t global, int64_t local) {
  MG_ASSERT(slice.size >= 0 && slice.global_begin >= 0 && slice.local_begin >= 0);
  MG_ASSERT(slice.global_begin <= global - slice.size && slice.local_begin <= local - slice.size);
}

void push(std::vector<Level>& levels, const Level& inner) {
  if (!levels.empty() && levels.back().stored == inner.count * inner.stored &&
      levels.back().local == inner.count * inner.local) {
    const int64_t count = levels.back().count * inner.count;
    levels.back() = {count, inner.stored, inner.local};
  } else {
    levels.push_back(inner);
  }
}

std::vector<Box> boxes_of(const CanonicalTensor& part, const Shape& shape) {
  const int rank = part.global.rank();
  MG_ASSERT(rank == shape.rank());
  const std::vector<int64_t> stored = part.stored_strides();
  std::vector<Box> boxes = {Box()};
  int64_t local = shape.elements();
  for (int d = 0; d < rank; ++d) {
    local = shape[d] == 0 ? 0 : local / shape[d];
    const std::vector<Slice> slices = part.slices(d);
    MG_ASSERT(std::ranges::find(part.held, d, &parallel::AxisSlices::axis) != part.held.end() ||
              part.global[d] == shape[d]);
    std::vector<Box> next;
    for (const Box& box : boxes) {
      for (const Slice& slice : slices) {
        check_slice(slice, part.global[d], shape[d]);
        Box& one = next.emplace_back(box);
        one.stored_begin += slice.global_begin * stored[static_cast<size_t>(d)];
        one.local_begin += slice.local_begin * local;
        push(one.levels, {slice.size, stored[static_cast<size_t>(d)], local});
      }
    }
    boxes = std::move(next);
  }
  return boxes;
}

// Calls f for the matrices of a box's last two levels, in the order of the parameter's elements.
template <class F>
void for_each_matrix(const Box& box, F&& f) {
  const size_t depth = box.levels.size();
  const Level run = depth == 0 ? Level{} : box.levels.back();
  const Level rows = depth < 2 ? Level{1, run.count, run.count} : box.levels[depth - 2];
  const auto descend = [&](auto&& self, size_t level, int64_t stored, int64_t local) -> void {
    if (level + 2 >= depth) {
      f(Block{.rows = rows.count,
              .columns = run.count,
              .stored = {stored, rows.stored, run.stored},
              .local = {local, rows.local, run.local}});
      return;
    }
    const Level& outer = box.levels[level];
    for (int64_t i = 0; i < outer.count; ++i)
      self(self, level + 1, stored + i * outer.stored, local + i * outer.local);
  };
  descend(descend, 0, box.stored_begin, box.local_begin);
}

Block rectangle(const Block& whole, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  Block block = whole;
  block.rows = rows;
  block.columns = columns;
  for (Matrix* m : {&block.stored, &block.local}) m->begin += row * m->row + column * m->column;
  return block;
}

// Makes rows contiguous on disk, with as few rows as possible.
Block along_disk(Block block) {
  if (block.columns == 1 && block.stored.row != 1) block.stored.column = block.local.column = 1;
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

// A matrix of which nothing is contiguous on disk becomes columns of single elements.
void add_along_disk(const Block& block, std::vector<Block>& blocks) {
  const bool has_runs = block.stored.column == 1 || block.stored.row == 1 || block.columns == 1;
  if (has_runs) return blocks.push_back(along_disk(block));
  for (int64_t row = 0; row < block.rows; ++row) {
    Block one = rectangle(block, row, 1, 0, block.columns);
    std::swap(one.rows, one.columns);
    one.stored = {one.stored.begin, one.stored.column, 1};
    one.local = {one.local.begin, one.local.column, 1};
    blocks.push_back(one);
  }
}

}  // namespace

std::vector<Block> blocks_of(const CanonicalTensor& part, const Shape& shape, int64_t begin,
                             int64_t size) {
  MG_ASSERT(begin >= 0 && size >= 0 && begin <= shape.elements() - size);
  std::vector<Block> blocks;
  for (const Box& box : boxes_of(part, shape)) {
    for_each_matrix(box, [&](const Block& whole) {
      const int64_t first = begin - whole.local.begin;
      for_each_rectangle(whole.rows, whole.columns, whole.local.row, first, first + size,
                         [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
                           Block block = rectangle(whole, row, rows, column, columns);
                           block.local.begin -= begin;
                           add_along_disk(block, blocks);
                         });
    });
  }
  return blocks;
}

}  // namespace megatron::checkpoint
