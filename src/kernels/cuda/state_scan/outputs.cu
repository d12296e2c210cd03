#include "kernels/cuda/state_scan/call.h"
#include "kernels/cuda/state_scan/chunk_state.h"
#include "kernels/cuda/state_scan/groups.h"

namespace megatron::kernels::cuda {
namespace {

template <class T>
struct OutputTiles {
  ScanTile<T> weights, left, right;
  ScanToken tokens[kSide];
};

// weights = M of a head.
template <class T>
__device__ void weigh(ScanSums<T>& products, OutputTiles<T>& tiles) {
  products.each([&](int i, int j, float product) {
    const float decay = decay_of_pair(tiles.tokens, i, j);
    tiles.weights.row(i)[j] = from_float<T>(product * decay * tiles.tokens[j].step);
  });
}

// Outputs of a part of a group's heads in a chunk. One block per part.
template <class T>
__global__ void __launch_bounds__(kScanThreads, 2) compute_outputs(ScanCall<T> call) {
  auto& tiles = *reinterpret_cast<OutputTiles<T>*>(dynamic_shared());
  const HeadsOfChunk at(call);
  const ScanText text = call.text(at.sequence);
  if (at.chunk >= text.chunks()) return;
  const bool is_needed = ScanSums<T>::has_rows(text.begin_of(at.chunk), text.end_of(at.chunk));
  ScanSums<T> products;
  for (int n = 0; n < call.state_width; n += kSide) {
    __syncthreads();
    fill_tile(tiles.left, call.c_rows(text, at.sequence, at.chunk, at.group), 0, n);
    fill_tile(tiles.right, call.b_rows(text, at.sequence, at.chunk, at.group), 0, n);
    __syncthreads();
    if (is_needed)
      products.template add_product<Depth::inside, Depth::inside>(tiles.left, tiles.right,
                                                                  ScanSums<T>::lower_result());
  }
  for (int head = at.first_head; head < at.end_head; ++head) {
    __syncthreads();
    load_tokens(call, at.sequence, at.chunk, head, tiles.tokens);
    __syncthreads();
    weigh(products, tiles);
    for (int p = 0; p < call.width; p += kSide) {
      ScanSums<T> sums;
      const float* state = call.state_before(text, at.sequence, at.chunk, head);
      if (state != nullptr && tiles.tokens[0].first < 0) {
        for (int n = 0; n < call.state_width; n += kSide) {
          __syncthreads();
          fill_tile(tiles.left, call.c_rows(text, at.sequence, at.chunk, at.group), 0, n);
          fill_tile(tiles.right, call.rows_of_state(state), p, n);
          __syncthreads();
          if (is_needed)
            sums.template add_product<Depth::inside, Depth::inside>(tiles.left, tiles.right);
        }
        sums.each([&](int i, int, float& sum) { sum *= decay_of_state(tiles.tokens[i]); });
      }
      __syncthreads();
      fill_tile(tiles.left, call.x_rows(text, at.sequence, at.chunk, head), 0, p);
      __syncthreads();
      if (is_needed)
        sums.template add_product<Depth::inside, Depth::outside>(tiles.weights, tiles.left,
                                                                 ScanSums<T>::lower());
      const float d = call.numbers.d[head];
      sums.each([&](int i, int column, float sum) {
        const float own = to_float(tiles.left.row(i)[column]);
        tiles.right.row(i)[column] = from_float<T>(fmaf(d, own, sum));
      });
      __syncthreads();
      store_tile(tiles.right, call.y_rows(text, at.sequence, at.chunk, head), p);
    }
  }
}

}  // namespace

template <class T>
void chunk_outputs(const ScanCall<T>& call, int64_t sequences, Stream& stream) {
  const int64_t blocks = sequences * call.groups * call.parts * call.chunks;
  launch_scan<OutputTiles<T>>("state_scan, outputs", compute_outputs<T>, blocks, stream, call);
}

template void chunk_outputs(const ScanCall<float>&, int64_t, Stream&);
template void chunk_outputs(const ScanCall<Bf16>&, int64_t, Stream&);
template void chunk_outputs(const ScanCall<F16>&, int64_t, Stream&);

}  // namespace megatron::kernels::cuda
