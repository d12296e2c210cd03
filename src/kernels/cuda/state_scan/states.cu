// States between chunks, and their gradients: first what each chunk adds, then sums over chunks.
#include "kernels/cuda/state_scan/call.h"
#include "kernels/cuda/state_scan/chunk_state.h"

namespace megatron::kernels::cuda {
namespace {

// What chunk k adds to the state after it; of gradients, what chunk k + 1 adds to that of the state
// after chunk k. One block per tile.
template <class T, bool kGradient>
__global__ void __launch_bounds__(kScanThreads) add_chunk(ScanCall<T> call, float* states) {
  auto& tiles = *reinterpret_cast<ChunkStateTiles<T>*>(dynamic_shared());
  const ChunkStateTile at(call, call.inner_states);
  const ScanText text = call.text(at.sequence);
  if (at.chunk >= text.last_chunk()) return;
  ScanSums<T> sums;
  if constexpr (kGradient) add_outputs(call, text, at, at.chunk + 1, tiles, sums);
  else add_inputs(call, text, at, at.chunk, tiles, sums);
  float* to = states + call.state_index(at.sequence, at.chunk, at.head);
  sums.each([&](int r, int c, float x) {
    const int p = at.first_row + r, n = at.first_column + c;
    if (p < call.width && n < call.state_width) to[int64_t{p} * call.state_width + n] = x;
  });
}

// Loads of a thread that are in flight together.
constexpr int kAhead = 8;

// Adds up one element of a head's state over the chunks before each (kGradient: of its gradient
// over those after), in order. final: gradients of the states after the last chunks, or null.
template <class T, bool kGradient>
__global__ void __launch_bounds__(kThreads)
    pass(ScanCall<T> call, float* states, const float* final, unsigned blocks) {
  const int64_t head_of_all = blockIdx.x / blocks;
  const int head = static_cast<int>(head_of_all % call.heads);
  const int64_t sequence = head_of_all / call.heads;
  const int64_t element = int64_t{blockIdx.x % blocks} * kThreads + threadIdx.x;
  if (element >= call.state_size()) return;
  const ScanText text = call.text(sequence);
  const int count = text.last_chunk();
  float state = 0;
  if (kGradient && final != nullptr) final += head_of_all * call.state_size();
  const float* before = kGradient ? final : call.state_before(text, sequence, 0, head);
  if (before != nullptr) state = before[element];
  for (int first = 0; first < count; first += kAhead) {
    float added[kAhead], decay[kAhead];
    const auto chunk_of = [&](int i) { return kGradient ? count - 1 - first - i : first + i; };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= count) continue;
      const int chunk = chunk_of(i);
      added[i] = states[call.state_index(sequence, chunk, head) + element];
      decay[i] = 0;
      if (!kGradient || chunk + 1 < count || final != nullptr) {
        const int over = kGradient ? chunk + 1 : chunk;
        decay[i] = decay_of_state(call.tokens_of(sequence, over, head)[text.last_of(over)]);
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= count) continue;
      state = next_state(state, decay[i], added[i]);
      states[call.state_index(sequence, chunk_of(i), head) + element] = state;
    }
  }
}

template <class T, bool kGradient>
void launch_chunks(const ScanCall<T>& call, int64_t sequences, float* states, Stream& stream) {
  const int64_t blocks =
      sequences * call.inner_states * call.heads * call.width_tiles * call.state_tiles;
  launch_scan<ChunkStateTiles<T>>(kGradient ? "state_scan_backward, states" : "state_scan, states",
                                  add_chunk<T, kGradient>, blocks, stream, call, states);
}

template <class T, bool kGradient>
void launch_pass(const ScanCall<T>& call, int64_t sequences, float* states, const float* final,
                 Stream& stream) {
  if (call.inner_states == 0) return;
  const int64_t blocks = ceil_div(int64_t{call.width} * call.state_width, kThreads);
  const int64_t all = blocks * sequences * call.heads;
  if (all == 0) return;
  check_blocks("state_scan, sums of states", all);
  launch("state_scan, sums of states", pass<T, kGradient>, Grid{dim3(static_cast<unsigned>(all))},
         stream, call, states, final, static_cast<unsigned>(blocks));
}

}  // namespace

template <class T>
void chunk_states(const ScanCall<T>& call, int64_t sequences, Stream& stream) {
  launch_chunks<T, false>(call, sequences, call.states, stream);
}
template <class T>
void pass_states(const ScanCall<T>& call, int64_t sequences, Stream& stream) {
  launch_pass<T, false>(call, sequences, call.states, nullptr, stream);
}
template <class T>
void chunk_state_gradients(const ScanCall<T>& call, int64_t sequences, float* dstates,
                           Stream& stream) {
  launch_chunks<T, true>(call, sequences, dstates, stream);
}
template <class T>
void pass_state_gradients(const ScanCall<T>& call, int64_t sequences, float* dstates,
                          const float* dfinal, Stream& stream) {
  launch_pass<T, true>(call, sequences, dstates, dfinal, stream);
}

#define MEGATRON_SCAN_STATES(T)                                                      \
  template void chunk_states(const ScanCall<T>&, int64_t, Stream&);                  \
  template void pass_states(const ScanCall<T>&, int64_t, Stream&);                   \
  template void chunk_state_gradients(const ScanCall<T>&, int64_t, float*, Stream&); \
  template void pass_state_gradients(const ScanCall<T>&, int64_t, float*, const float*, Stream&);
MEGATRON_SCAN_STATES(float)
MEGATRON_SCAN_STATES(Bf16)
MEGATRON_SCAN_STATES(F16)
#undef MEGATRON_SCAN_STATES

}  // namespace megatron::kernels::cuda
