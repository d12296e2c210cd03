#include "kernels/cuda/kernels.h"
#include "kernels/cuda/philox.h"
#include "kernels/cuda/row_tokens.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

// Chunks that a thread reads before it computes.
constexpr int kTogether = 2;

template <class T>
struct Rows {
  const T* x;
  T* out;
  DeviceRowTokens tokens;  // without sample ids, all elements are kept
  int64_t width;
  uint32_t first_group;  // four channels each
  uint32_t items;        // chunks of all rows
  Divisor chunks;        // chunks per row
  uint64_t key;
  uint32_t threshold;
  float scale;
  bool whole;
};

// Applies dropout to a chunk.
template <class T>
__device__ Vector<T, kChunk<T>> kept(const Rows<T>& rows, Vector<T, kChunk<T>> x, uint32_t row,
                                     uint32_t channel) {
  const DeviceRowTokens::Token token = rows.tokens.at(row);
#pragma unroll
  for (int group = 0; group < kChunk<T> / 4; ++group) {
    const PhiloxWords words = dropout_words(rows.key, token.sample, token.position,
                                            rows.first_group + channel / 4 + group);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      T& value = x.at[group * 4 + j];
      const float scaled = to_float(value) * rows.scale;
      value = from_float<T>(words.at[j] >= rows.threshold ? scaled : 0.0f);
    }
  }
  return x;
}

template <class T>
__global__ void __launch_bounds__(kThreads) drop(Rows<T> rows) {
  constexpr int N = kChunk<T>;
  Vector<T, N> x[kTogether];
  uint32_t row[kTogether], channel[kTogether];
  int64_t count[kTogether];
#pragma unroll
  for (int k = 0; k < kTogether; ++k) {
    const uint32_t item = (blockIdx.x * kTogether + k) * kThreads + threadIdx.x;
    row[k] = rows.chunks.quotient(item);
    channel[k] = (item - row[k] * rows.chunks.value()) * N;
    count[k] = item < rows.items ? rows.width - channel[k] : 0;
    x[k] = load_chunk<N>(rows.x + row[k] * rows.width + channel[k], count[k], rows.whole);
  }
#pragma unroll
  for (int k = 0; k < kTogether; ++k) {
    if (count[k] <= 0) break;
    if (rows.tokens.samples != nullptr) x[k] = kept(rows, x[k], row[k], channel[k]);
    store_chunk(rows.out + row[k] * rows.width + channel[k], x[k], count[k], rows.whole);
  }
}

}  // namespace

void dropout(const DropoutArgs& args, Stream& stream) {
  const int64_t count = args.x.size(0), width = args.x.size(1);
  const DropoutArgs::Mask& mask = args.mask;
  for_storage_type("dropout", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (count * width == 0) return;
    const int64_t chunks = ceil_div(width, kChunk<T>);
    Rows<T> rows{.x = address_of<T>(args.x),
                 .out = address_of<T>(args.out),
                 .tokens = {},
                 .width = width,
                 .first_group = static_cast<uint32_t>(mask.first_channel / 4),
                 .items = count_items("dropout", count * chunks),
                 .chunks = Divisor(static_cast<uint32_t>(chunks)),
                 .key = dropout_key(mask.seed, mask.stream),
                 .threshold = dropout_threshold(mask.p),
                 .scale = 1.0f / (1.0f - mask.p),
                 .whole = false};
    rows.whole = are_aligned({rows.x, rows.out}) && width % kChunk<T> == 0;
    if (mask.p > 0) rows.tokens = device_row_tokens("dropout", mask.rows, count);
    launch("dropout", drop<T>, grid_for(ceil_div(rows.items, kTogether)), stream, rows);
  });
}

}  // namespace megatron::kernels::cuda
