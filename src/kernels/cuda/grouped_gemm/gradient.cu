#include "kernels/cuda/grouped_gemm/tiles.h"
#include "kernels/cuda/kernels.h"

namespace megatron::kernels::cuda {
namespace {

template <class T>
struct GroupedGradient {
  Operand<T, false> dy, x;
  const int32_t* offsets;
  int m, n;
  int row_tiles, column_tiles;
  Wide<T>* dw;
  bool accumulate, whole;  // whole: of rows of dw
  ProductScales scales;
};

// The blocks of a group are consecutive.
template <class Tile, class T>
__global__ void __launch_bounds__(kProductThreads, kProductBlocks)
    sum_products(GroupedGradient<T> g) {
  const int of_group = g.row_tiles * g.column_tiles,
            group = static_cast<int>(blockIdx.x) / of_group;
  const int tile = static_cast<int>(blockIdx.x) - group * of_group;
  const int row = tile / g.column_tiles * Tile::kRows;
  const int column = tile % g.column_tiles * Tile::kColumns;
  const int begin = g.offsets[group], depth = g.offsets[group + 1] - begin;
  if (depth == 0 && g.accumulate) return;
  const auto factor = g.scales.template factor<Wide<T>>();
  Tile::multiply(g.dy.at(begin, row, g.m - row), g.x.at(begin, column, g.n - column), depth,
                 [&]<int N>(int i, int j, const Vector<Wide<T>, N>& found) {
                   Vector<Wide<T>, N> sums = found;
                   for (int k = 0; k < N; ++k) sums.at[k] *= factor;
                   const int64_t left = g.n - column - j;
                   Wide<T>* to = g.dw + (int64_t{group} * g.m + row + i) * g.n + column + j;
                   if (g.accumulate) {
                     const Vector<Wide<T>, N> old = load_chunk<N>(to, left, g.whole);
                     for (int k = 0; k < N; ++k) sums.at[k] += old.at[k];
                   }
                   store_chunk(to, sums, left, g.whole);
                 });
}

template <class T>
struct BiasGradient {
  const T* dy;
  const int32_t* offsets;
  int64_t width;
  Wide<T>* dbias;
  bool accumulate, whole;  // whole: of rows of dy
};

// Each block sums kSlab columns of a group: warp w adds rows w, w + kWarps, ... in order, then the
// warps' sums are added in order.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_columns(BiasGradient<T> g) {
  constexpr int kOfLane = 4, kSlab = kWarp * kOfLane, kWarps = kThreads / kWarp;
  __shared__ Wide<T> partial[kWarps][kSlab];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t slab = int64_t{blockIdx.x} * kSlab, column = slab + lane * kOfLane;
  const int64_t group = blockIdx.y, end = g.offsets[group + 1];
  Wide<T> sums[kOfLane] = {};
#pragma unroll 4
  for (int64_t row = g.offsets[group] + warp; row < end; row += kWarps) {
    const Vector<T, kOfLane> values =
        load_chunk<kOfLane>(g.dy + row * g.width + column, g.width - column, g.whole);
#pragma unroll
    for (int k = 0; k < kOfLane; ++k) sums[k] += widen(values.at[k]);
  }
#pragma unroll
  for (int k = 0; k < kOfLane; ++k) partial[warp][lane * kOfLane + k] = sums[k];
  __syncthreads();
  if (threadIdx.x >= kSlab || slab + threadIdx.x >= g.width) return;
  Wide<T> total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += partial[w][threadIdx.x];
  Wide<T>& to = g.dbias[group * g.width + slab + threadIdx.x];
  to = g.accumulate ? total + to : total;
}

template <class T>
void run(const GroupedGradientArgs& args, Stream& stream) {
  const int64_t groups = args.dw.out.size(0), m = args.dy.size(1), n = args.x.size(1);
  GroupedGradient<T> g{.dy = {args.dy, m},
                       .x = {args.x, n},
                       .offsets = address_of<int32_t>(args.offsets),
                       .m = static_cast<int>(m),
                       .n = static_cast<int>(n),
                       .row_tiles = 0,
                       .column_tiles = 0,
                       .dw = address_of<Wide<T>>(args.dw.out),
                       .accumulate = args.dw.beta != 0,
                       .whole = false,
                       .scales = {args.dy_scale, args.x_scale}};
  g.whole = is_whole(g.dw, n);
  if (args.dw.out.elements() > 0) {
    for_product_tile<T, false, false>(m, [&](auto tile) {
      using Tile = decltype(tile);
      g.row_tiles = static_cast<int>(ceil_div(m, Tile::kRows));
      g.column_tiles = static_cast<int>(ceil_div(n, Tile::kColumns));
      const int64_t blocks = groups * g.row_tiles * g.column_tiles;
      const Grid grid{.blocks = dim3(static_cast<unsigned>(blocks)),
                      .threads = dim3(kProductThreads)};
      launch("grouped_gradient", sum_products<Tile, T>, grid, stream, g);
    });
  }
  if (!args.dbias.out.defined() || args.dbias.out.elements() == 0) return;
  const BiasGradient<T> bias{.dy = address_of<T>(args.dy),
                             .offsets = g.offsets,
                             .width = m,
                             .dbias = address_of<Wide<T>>(args.dbias.out),
                             .accumulate = args.dbias.beta != 0,
                             .whole = is_whole(address_of<T>(args.dy), m)};
  const Grid grid{
      dim3(static_cast<unsigned>(ceil_div(m, 4 * kWarp)), static_cast<unsigned>(groups))};
  launch("grouped_gradient", sum_columns<T>, grid, stream, bias);
}

}  // namespace

void grouped_gradient(const GroupedGradientArgs& args, Stream& stream) {
  for_floating_type("grouped_gradient", args.dy.dtype(),
                    [&](auto type) { run<decltype(type)>(args, stream); });
}

}  // namespace megatron::kernels::cuda
