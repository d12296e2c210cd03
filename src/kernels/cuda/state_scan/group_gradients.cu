// Gradients of b and c: sums over parts of a group's heads, in order.
#include "kernels/cuda/state_scan/gradients.h"

namespace megatron::kernels::cuda {
namespace {

template <class T>
struct GroupGradientTiles {
  ScanTile<T> products, right, result;
};

// Rounds a result and stores it.
template <class T>
__device__ void store(ScanSums<T>& sums, const MatrixRows<T>& to, int first_column,
                      ScanTile<T>& staging) {
  sums.each([&](int i, int column, float x) { staging.row(i)[column] = from_float<T>(x); });
  __syncthreads();
  store_tile(staging, to, first_column);
}

// One block per chunk, group and tile of its columns.
template <class T>
__global__ void __launch_bounds__(kScanThreads) differentiate_groups(ScanGradients<T> work) {
  auto& tiles = *reinterpret_cast<GroupGradientTiles<T>*>(dynamic_shared());
  const ScanCall<T>& call = work.call;
  int64_t index = blockIdx.x;
  const int tile = static_cast<int>(index % call.state_tiles), n = tile * kSide;
  index /= call.state_tiles;
  const int group = static_cast<int>(index % call.groups);
  index /= call.groups;
  const int chunk = static_cast<int>(index % call.chunks);
  const int64_t sequence = index / call.chunks;
  const ScanText text = call.text(sequence);
  ScanSums<T> dproducts, db, dc;
  for (int part = 0; part < call.parts; ++part) {
    const int64_t from = work.tile_index(sequence, chunk, part, group) * kSide * kSide;
    add_sums(work.products + from, dproducts);
    const int64_t of_tile = from * call.state_tiles + tile * kSide * kSide;
    add_sums(work.db_parts + of_tile, db);
    add_sums(work.dc_parts + of_tile, dc);
  }
  dproducts.each([&](int i, int j, float x) { tiles.products.row(i)[j] = from_float<T>(x); });
  const auto rows_of = [&](const HeadTensor<T>& tensor) {
    return call.rows_of(tensor, nullptr, text, sequence, chunk, group, call.groups,
                        call.state_width);
  };
  fill_tile(tiles.right, rows_of(call.b), 0, n);
  __syncthreads();
  dc.template add_product<Depth::inside, Depth::outside>(tiles.products, tiles.right,
                                                         ScanSums<T>::lower());
  store(dc, rows_of(work.dc), n, tiles.result);
  __syncthreads();
  fill_tile(tiles.right, rows_of(call.c), 0, n);
  __syncthreads();
  db.template add_product<Depth::outside, Depth::outside>(tiles.products, tiles.right,
                                                          ScanSums<T>::upper());
  store(db, rows_of(work.db), n, tiles.result);
}

}  // namespace

template <class T>
void group_gradients(const ScanGradients<T>& work, Stream& stream) {
  const ScanCall<T>& call = work.call;
  const int64_t blocks = work.sequences * call.groups * call.chunks * call.state_tiles;
  launch_scan<GroupGradientTiles<T>>("state_scan_backward, db and dc", differentiate_groups<T>,
                                     blocks, stream, work);
}

template void group_gradients(const ScanGradients<float>&, Stream&);
template void group_gradients(const ScanGradients<Bf16>&, Stream&);
template void group_gradients(const ScanGradients<F16>&, Stream&);

}  // namespace megatron::kernels::cuda
