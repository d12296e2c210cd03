#include "kernels/cuda/state_scan/call.h"

namespace megatron::kernels::cuda {
namespace {

// One warp per text.
template <class T>
__global__ void __launch_bounds__(kWarp) find(ScanCall<T> call, ScanText* texts) {
  const int64_t sequence = blockIdx.x;
  const int32_t* positions = call.slots.positions + sequence * call.sequence_tokens;
  ScanText text{.column = 0, .position = 0, .count = 0, .slot = -1};
  for (int base = 0; base < call.sequence_tokens; base += kWarp) {
    const int column = base + static_cast<int>(threadIdx.x);
    const bool there = column < call.sequence_tokens && positions[column] >= 0;
    const unsigned all = __ballot_sync(kAllLanes, there ? 1 : 0);
    if (text.count == 0 && all != 0) {
      text.column = base + __ffs(static_cast<int>(all)) - 1;
      text.position = positions[text.column];
    }
    text.count += __popc(all);
  }
  if (text.count > 0 && text.position > 0) text.slot = call.slots.slot(sequence, text.position - 1);
  if (threadIdx.x == 0) texts[sequence] = text;
}

constexpr int kTokenWarps = kThreads / kWarp;
// Logarithms to base 2 below this give decays of 0. The limit keeps sums over a chunk precise.
constexpr double kLeastLogarithm = -4096;

// One warp per chunk and head; a lane has the tokens `lane` and kWarp + lane. A token's s is summed
// in f64 in an order that depends only on its row.
template <class T>
__global__ void __launch_bounds__(kThreads) prepare(ScanCall<T> call, int64_t count) {
  static_assert(kSide == 2 * kWarp);
  const int64_t index = int64_t{blockIdx.x} * kTokenWarps + threadIdx.x / kWarp;
  if (index >= count) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head = static_cast<int>(index % call.heads);
  const int chunk = static_cast<int>(index / call.heads % call.chunks);
  const int64_t sequence = index / call.heads / call.chunks;
  const ScanText text = call.text(sequence);
  const int begin = text.begin_of(chunk), end = text.end_of(chunk);
  const int first_token = (text.position - text.stored()) + chunk * kSide;
  const double rate = -1.4426950408889634 * static_cast<double>(expf(call.numbers.a_log[head]));
  double before = 0;
#pragma unroll
  for (int half = 0; half < kSide; half += kWarp) {
    const int row = half + lane;
    ScanToken token{.high = 0, .low = 0, .step = 0, .first = kSide};
    if (row < begin) {
      token.step = call.slots.steps[(int64_t{text.slot} * kSide + row) * call.heads + head];
      token.first = -first_token;
    } else if (row < end) {
      const int64_t at = text.column_of(chunk) + row - begin;
      const float raw =
          softplus(to_float(call.dt.at(sequence, at, head)) + call.numbers.dt_bias[head]);
      token.step = fminf(fmaxf(raw, call.numbers.min_step), call.numbers.max_step);
      const int start =
          call.starts == nullptr ? call.start : call.starts[sequence * call.sequence_tokens + at];
      token.first = start - first_token;
    }
    const double logarithm = token.step * rate;
    double s = logarithm < kLeastLogarithm ? kLeastLogarithm : logarithm;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const double other = __shfl_up_sync(kAllLanes, s, distance);
      if (lane >= distance) s += other;
    }
    s += before;
    before = __shfl_sync(kAllLanes, s, kWarp - 1);
    token.high = static_cast<float>(s);
    token.low = static_cast<float>(s - static_cast<double>(token.high));
    call.tokens[index * kSide + row] = token;
  }
}

}  // namespace

template <class T>
void find_texts(const ScanCall<T>& call, int64_t sequences, ScanText* texts, Stream& stream) {
  const Grid grid{.blocks = dim3(static_cast<unsigned>(sequences)), .threads = dim3(kWarp)};
  if (sequences > 0) launch("state_scan_continued", find<T>, grid, stream, call, texts);
}

template <class T>
void prepare_tokens(const ScanCall<T>& call, int64_t sequences, Stream& stream) {
  const int64_t count = sequences * call.chunks * call.heads;
  if (count == 0) return;
  const int64_t blocks = ceil_div(count, kTokenWarps);
  check_blocks("state_scan, steps", blocks);
  const Grid grid{dim3(static_cast<unsigned>(blocks))};
  launch("state_scan, steps", prepare<T>, grid, stream, call, count);
}

#define MEGATRON_SCAN_TOKENS(T)                                              \
  template void find_texts(const ScanCall<T>&, int64_t, ScanText*, Stream&); \
  template void prepare_tokens(const ScanCall<T>&, int64_t, Stream&);
MEGATRON_SCAN_TOKENS(float)
MEGATRON_SCAN_TOKENS(Bf16)
MEGATRON_SCAN_TOKENS(F16)
#undef MEGATRON_SCAN_TOKENS

}  // namespace megatron::kernels::cuda
