#include "kernels/cuda/grouped_gemm/row_tiles.h"
#include "kernels/cuda/grouped_gemm/tiles.h"
#include "kernels/cuda/kernels.h"

namespace megatron::kernels::cuda {
namespace {

template <class T, bool kTransposed>
struct GroupedProduct {
  Operand<T, true> a;
  Operand<T, kTransposed> b;
  const T* bias;
  const int32_t* offsets;
  int groups, rows, columns, column_tiles;
  int64_t depth;
  T* out;
  bool whole;  // rows of out and bias
  ProductScales scales;
};

template <class Tile, class T, bool kTransposed>
__global__ void __launch_bounds__(kProductThreads, kProductBlocks)
    multiply_groups(GroupedProduct<T, kTransposed> p) {
  const int number = static_cast<int>(blockIdx.x) / p.column_tiles;
  const RowTile tile = find_row_tile(p.offsets, p.groups, p.rows, Tile::kRows, number);
  if (tile.count == 0) return;
  const int column = (static_cast<int>(blockIdx.x) - number * p.column_tiles) * Tile::kColumns;
  const bool is_group = tile.group < p.groups;
  const auto factor = p.scales.template factor<Wide<T>>();
  const int64_t row_of_b = is_group ? tile.group * (kTransposed ? p.columns : p.depth) : 0;
  const T* bias =
      is_group && p.bias != nullptr ? p.bias + int64_t{tile.group} * p.columns : nullptr;
  Tile::multiply(
      p.a.at(tile.first, 0, tile.count),
      p.b.at(row_of_b + (kTransposed ? column : 0), kTransposed ? 0 : column, p.columns - column),
      is_group ? p.depth : 0, [&]<int N>(int i, int j, const Vector<Wide<T>, N>& found) {
        Vector<Wide<T>, N> sums = found;
        const int64_t left = p.columns - column - j;
        Vector<T, N> rounded;
        for (int n = 0; n < N; ++n) sums.at[n] *= factor;
        if (bias != nullptr) {
          const Vector<T, N> added = load_chunk<N>(bias + column + j, left, p.whole);
          for (int n = 0; n < N; ++n) sums.at[n] += widen(added.at[n]);
        }
        for (int n = 0; n < N; ++n) rounded.at[n] = narrow<T>(sums.at[n]);
        T* to = p.out + int64_t{tile.first + i} * p.columns + column + j;
        store_chunk(to, rounded, left, p.whole);
      });
}

template <class T, bool kTransposed>
void run(const GroupedGemmArgs& args, Stream& stream) {
  const int64_t rows = args.out.size(0), columns = args.out.size(1), groups = args.b.size(0);
  GroupedProduct<T, kTransposed> p{.a = {args.a, args.a.size(1)},
                                   .b = {args.b, args.b.size(2)},
                                   .bias = address_of<T>(args.bias),
                                   .offsets = address_of<int32_t>(args.offsets),
                                   .groups = static_cast<int>(groups),
                                   .rows = static_cast<int>(rows),
                                   .columns = static_cast<int>(columns),
                                   .column_tiles = 0,
                                   .depth = args.a.size(1),
                                   .out = address_of<T>(args.out),
                                   .whole = false,
                                   .scales = {args.a_scale, args.b_scale}};
  p.whole = is_whole(p.out, columns) && is_whole(p.bias, columns);
  for_product_tile<T, true, kTransposed>(
      ceil_div(rows, std::max<int64_t>(1, groups)), [&](auto tile) {
        using Tile = decltype(tile);
        p.column_tiles = static_cast<int>(ceil_div(columns, Tile::kColumns));
        const int64_t blocks = most_row_tiles(rows, groups, Tile::kRows) * p.column_tiles;
        const Grid grid{.blocks = dim3(static_cast<unsigned>(blocks)),
                        .threads = dim3(kProductThreads)};
        launch("grouped_gemm", multiply_groups<Tile, T, kTransposed>, grid, stream, p);
      });
}

}  // namespace

void grouped_gemm(const GroupedGemmArgs& args, Stream& stream) {
  if (args.out.elements() == 0) return;
  for_floating_type("grouped_gemm", args.a.dtype(), [&](auto type) {
    using T = decltype(type);
    args.transpose_b ? run<T, true>(args, stream) : run<T, false>(args, stream);
  });
}

}  // namespace megatron::kernels::cuda
