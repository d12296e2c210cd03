// What the tokens of a sequence add to a state that passes through it.
#include "kernels/cuda/state_scan/call.h"
#include "kernels/cuda/state_scan/chunk_state.h"

namespace megatron::kernels::cuda {
namespace {

// One block per tile of a head's state, over all chunks, from that at which the weights of tokens
// are greatest.
template <class T>
__global__ void __launch_bounds__(kScanThreads)
    add_up(ScanCall<T> call, bool gradient, float* state, float* decay) {
  auto& tiles = *reinterpret_cast<ChunkStateTiles<T>*>(dynamic_shared());
  const ChunkStateTile at(call, 1);
  const ScanText text = call.text(at.sequence);
  const ScanToken* const tokens = tiles.tokens;
  ScanSums<T> sums;
  float factor = 1;  // the decays of the chunks so far
  for (int i = 0; i < text.chunks() && factor != 0; ++i) {
    const int chunk = gradient ? i : text.last_chunk() - i;
    __syncthreads();
    load_tokens(call, at.sequence, chunk, at.head, tiles.tokens);
    __syncthreads();
    const ScanToken last = tokens[text.last_of(chunk)];
    fill_tile(tiles.left, call.x_rows(text, at.sequence, chunk, at.head), 0, at.first_row,
              [&](int t) {
                return factor * (gradient ? decay_of_state(tokens[t])
                                          : decay_of_input(last, tokens[t], t) * tokens[t].step);
              });
    fill_tile(tiles.right, call.b_rows(text, at.sequence, chunk, at.head / call.group_heads()), 0,
              at.first_column);
    __syncthreads();
    sums.template add_product<Depth::outside, Depth::outside>(tiles.left, tiles.right);
    factor *= decay_of_state(last);
  }
  const int64_t index = at.sequence * call.heads + at.head;
  sums.each([&](int r, int c, float x) {
    const int p = at.first_row + r, n = at.first_column + c;
    if (p < call.width && n < call.state_width)
      state[index * call.state_size() + int64_t{p} * call.state_width + n] = x;
  });
  if (decay != nullptr && threadIdx.x == 0 && at.first_row == 0 && at.first_column == 0)
    decay[index] = factor;
}

}  // namespace

template <class T>
void carry_state(const ScanCall<T>& call, int64_t sequences, bool gradient, float* state,
                 float* decay, Stream& stream) {
  const int64_t blocks = sequences * call.heads * call.width_tiles * call.state_tiles;
  launch_scan<ChunkStateTiles<T>>("state_carry", add_up<T>, blocks, stream, call, gradient, state,
                                  decay);
}

template void carry_state(const ScanCall<float>&, int64_t, bool, float*, float*, Stream&);
template void carry_state(const ScanCall<Bf16>&, int64_t, bool, float*, float*, Stream&);
template void carry_state(const ScanCall<F16>&, int64_t, bool, float*, float*, Stream&);

}  // namespace megatron::kernels::cuda
