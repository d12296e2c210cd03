// What the gradients of b, c and decays have from the states.
#include "kernels/cuda/state_scan/gradients.h"

namespace megatron::kernels::cuda {
namespace {

template <class T>
struct StateTermTiles {
  ScanTile<T> left, right, c;
  ScanToken tokens[kSide];
  float inherited[kScanHeads][kSide];
  float partial[kWarp];
};

// decayed = E_l times the products of a state's elements and their gradients.
template <class T>
__device__ void sum_decayed(const ScanGradients<T>& work, const HeadsOfChunk& at,
                            const ScanText& text, int head, StateTermTiles<T>& tiles) {
  const ScanCall<T>& call = work.call;
  const float* state = call.state_before(text, at.sequence, at.chunk, head);
  const float* dstate = work.dstate_after(at.sequence, at.chunk, head);
  const int64_t index = call.head_index(at.sequence, at.chunk, head);
  const float decay = decay_of_state(call.tokens[index * kSide + text.last_of(at.chunk)]);
  float sum = 0;
  if (state != nullptr && dstate != nullptr && decay != 0) {
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < call.state_size(); i += kScanThreads)
      sum = fmaf(state[i], dstate[i], sum);
  }
  sum = block_sum(sum, tiles.partial);
  if (threadIdx.x == 0) work.decayed[index] = decay * sum;
}

// dc += E_i S^T dy_i in the columns from n on, and `inherited` += c_i times that.
template <class T>
__device__ void add_to_dc(const ScanCall<T>& call, const HeadsOfChunk& at, const ScanText& text,
                          int head, int n, StateTermTiles<T>& tiles, ScanSums<T>& dc) {
  const float* state = call.state_before(text, at.sequence, at.chunk, head);
  if (state == nullptr || tiles.tokens[0].first >= 0) return;
  ScanSums<T> sums;
  for (int p = 0; p < call.width; p += kSide) {
    __syncthreads();
    fill_tile(tiles.left, call.y_rows(text, at.sequence, at.chunk, head), 0, p);
    fill_tile(tiles.right, call.rows_of_state(state), p, n);
    __syncthreads();
    sums.template add_product<Depth::inside, Depth::outside>(tiles.left, tiles.right);
  }
  sums.each([&](int i, int, float& sum) { sum *= decay_of_state(tiles.tokens[i]); });
  dc.add(sums);
  sums.add_rows(tiles.inherited[head - at.first_head],
                [&](int i, int column) { return to_float(tiles.c.row(i)[column]); });
}

// db += L_lj D_j dS^T x_j.
template <class T>
__device__ void add_to_db(const ScanGradients<T>& work, const HeadsOfChunk& at,
                          const ScanText& text, int head, int n, StateTermTiles<T>& tiles,
                          ScanSums<T>& db) {
  const ScanCall<T>& call = work.call;
  const float* dstate = work.dstate_after(at.sequence, at.chunk, head);
  if (dstate == nullptr) return;
  ScanSums<T> sums;
  for (int p = 0; p < call.width; p += kSide) {
    __syncthreads();
    fill_tile(tiles.left, call.x_rows(text, at.sequence, at.chunk, head), 0, p);
    fill_tile(tiles.right, call.rows_of_state(dstate), p, n);
    __syncthreads();
    sums.template add_product<Depth::inside, Depth::outside>(tiles.left, tiles.right);
  }
  const ScanToken *tokens = tiles.tokens, &last = tokens[text.last_of(at.chunk)];
  sums.each(
      [&](int j, int, float& sum) { sum *= decay_of_input(last, tokens[j], j) * tokens[j].step; });
  db.add(sums);
}

template <class T>
__global__ void __launch_bounds__(kScanThreads, 2) add_state_terms(ScanGradients<T> work) {
  auto& tiles = *reinterpret_cast<StateTermTiles<T>*>(dynamic_shared());
  const ScanCall<T>& call = work.call;
  const HeadsOfChunk at(call);
  const ScanText text = call.text(at.sequence);
  for (int i = static_cast<int>(threadIdx.x); i < kScanHeads * kSide; i += kScanThreads)
    tiles.inherited[i / kSide][i % kSide] = 0;
  for (int head = at.first_head; head < at.end_head; ++head)
    sum_decayed(work, at, text, head, tiles);
  const int64_t tile = work.tile_index(at.sequence, at.chunk, at.part, at.group);
  for (int n = 0; n < call.state_width; n += kSide) {
    ScanSums<T> db, dc;
    __syncthreads();
    fill_tile(tiles.c, call.c_rows(text, at.sequence, at.chunk, at.group), 0, n);
    for (int head = at.first_head; head < at.end_head; ++head) {
      __syncthreads();
      load_tokens(call, at.sequence, at.chunk, head, tiles.tokens);
      __syncthreads();
      add_to_dc(call, at, text, head, n, tiles, dc);
      add_to_db(work, at, text, head, n, tiles, db);
    }
    const int64_t to = (tile * call.state_tiles + n / kSide) * kSide * kSide;
    store_sums(db, work.db_parts + to);
    store_sums(dc, work.dc_parts + to);
  }
  __syncthreads();
  for (int head = at.first_head; head < at.end_head; ++head) {
    float* to = work.inherited + call.head_index(at.sequence, at.chunk, head) * kSide;
    if (threadIdx.x < kSide) to[threadIdx.x] = tiles.inherited[head - at.first_head][threadIdx.x];
  }
}

}  // namespace

template <class T>
void state_terms(const ScanGradients<T>& work, Stream& stream) {
  const ScanCall<T>& call = work.call;
  const int64_t blocks = work.sequences * call.groups * call.parts * call.chunks;
  launch_scan<StateTermTiles<T>>("state_scan_backward, db and dc of states", add_state_terms<T>,
                                 blocks, stream, work);
}

template void state_terms(const ScanGradients<float>&, Stream&);
template void state_terms(const ScanGradients<Bf16>&, Stream&);
template void state_terms(const ScanGradients<F16>&, Stream&);

}  // namespace megatron::kernels::cuda
