#include "kernels/cuda/state_scan/chunk_state.h"
#include "kernels/cuda/state_scan/slots.h"

namespace megatron::kernels::cuda {
namespace {

// One block per head of a text and tile of its state. The state before the text's last chunk here,
// or after it if it is complete, goes to the slot of its block; those at the ends of earlier blocks
// to their slots.
template <class T>
__global__ void __launch_bounds__(kScanThreads) put_states(ScanCall<T> call) {
  auto& tiles = *reinterpret_cast<ChunkStateTiles<T>*>(dynamic_shared());
  const ChunkStateTile at(call, 1);
  const ScanText text = call.text(at.sequence);
  if (text.count == 0) return;
  const int first = text.position - text.stored(), last = text.last_chunk();
  // from: null for 0. The thread that reads an element writes it.
  const auto put = [&](const float* from, int position, auto&& next) {
    float* to = call.slot_state(call.slots.slot(at.sequence, position), at.head);
    ScanSums<T> own;
    own.each([&](int r, int c, float& state) {
      const int p = at.first_row + r, n = at.first_column + c;
      if (p >= call.width || n >= call.state_width) return;
      const int64_t element = int64_t{p} * call.state_width + n;
      if (from != nullptr) state = from[element];
    });
    next(own);
    own.each([&](int r, int c, float state) {
      const int p = at.first_row + r, n = at.first_column + c;
      if (p < call.width && n < call.state_width) to[int64_t{p} * call.state_width + n] = state;
    });
  };
  const auto unchanged = [](ScanSums<T>&) {};
  for (int chunk = 0; chunk < last; ++chunk) {
    const int end = first + (chunk + 1) * kSide;
    if (end % call.slots.block_size == 0)
      put(call.state_before(text, at.sequence, chunk + 1, at.head), end - 1, unchanged);
  }
  const float* before = call.state_before(text, at.sequence, last, at.head);
  const int end = first + text.end();
  if (text.end_of(last) == kSide) {
    ScanSums<T> added;
    add_inputs(call, text, at, last, tiles, added);
    const float decay = decay_of_state(tiles.tokens[kSide - 1]);
    put(before, end - 1, [&](ScanSums<T>& state) {
#pragma unroll
      for (int i = 0; i < ScanSums<T>::kCount; ++i)
        state.of[i / 4][i % 4] = next_state(state.of[i / 4][i % 4], decay, added.of[i / 4][i % 4]);
    });
  } else if (last > 0 || text.stored() == 0 || before == nullptr) {
    put(before, end - 1, unchanged);
  }
}

// One block per token of the call. Copies to the slots what they hold of tokens whose chunk does
// not lie completely in this call.
template <class T>
__global__ void __launch_bounds__(kThreads) put_tokens(ScanCall<T> call) {
  const int column = static_cast<int>(blockIdx.x % static_cast<unsigned>(call.sequence_tokens));
  const int64_t sequence = blockIdx.x / static_cast<unsigned>(call.sequence_tokens);
  const int position = call.slots.positions[sequence * call.sequence_tokens + column];
  const int x_size = call.heads * call.width, b_size = call.groups * call.state_width;
  const auto x_at = [&](const HeadTensor<T>& tensor, int i, int width) -> T& {
    return tensor.data[sequence * tensor.sample_stride + column * tensor.position_stride +
                       i / width * tensor.head_stride + i % width];
  };
  const auto first = static_cast<int>(threadIdx.x);
  if (position < 0) {
    for (int i = first; i < x_size; i += kThreads) x_at(call.y, i, call.width) = from_float<T>(0);
    return;
  }
  const ScanText text = call.text(sequence);
  const int chunk = (text.stored() + column - text.column) / kSide, last = text.last_chunk();
  if (text.begin_of(chunk) == 0 && text.end_of(chunk) == kSide) return;
  // A token of the last chunk, if that is incomplete, takes the place of this one in their block.
  const int later = position + (last - chunk) * kSide;
  if (last > chunk && text.end_of(last) < kSide && later < text.position + text.count &&
      later / call.slots.block_size == position / call.slots.block_size)
    return;
  const int64_t row = int64_t{call.slots.slot(sequence, position)} * kSide + position % kSide;
  for (int i = first; i < x_size; i += kThreads)
    call.slots.x[row * x_size + i] = x_at(call.x, i, call.width);
  for (int i = first; i < b_size; i += kThreads)
    call.slots.b[row * b_size + i] = x_at(call.b, i, call.state_width);
  for (int head = first; head < call.heads; head += kThreads)
    call.slots.steps[row * call.heads + head] =
        call.tokens_of(sequence, chunk, head)[position % kSide].step;
}

}  // namespace

template <class T>
void store_states(const ScanCall<T>& call, int64_t sequences, Stream& stream) {
  const int64_t blocks = sequences * call.heads * call.width_tiles * call.state_tiles;
  launch_scan<ChunkStateTiles<T>>("state_scan_continued, states", put_states<T>, blocks, stream,
                                  call);
}

template <class T>
void store_tokens(const ScanCall<T>& call, int64_t sequences, Stream& stream) {
  const int64_t blocks = sequences * call.sequence_tokens;
  if (blocks == 0) return;
  check_blocks("state_scan_continued", blocks);
  launch("state_scan_continued, tokens", put_tokens<T>, Grid{dim3(static_cast<unsigned>(blocks))},
         stream, call);
}

#define MEGATRON_SCAN_SLOTS(T)                                      \
  template void store_states(const ScanCall<T>&, int64_t, Stream&); \
  template void store_tokens(const ScanCall<T>&, int64_t, Stream&);
MEGATRON_SCAN_SLOTS(float)
MEGATRON_SCAN_SLOTS(Bf16)
MEGATRON_SCAN_SLOTS(F16)
#undef MEGATRON_SCAN_SLOTS

}  // namespace megatron::kernels::cuda
