#include "kernels/check.h"
#include "kernels/cuda/chunk.h"
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/philox.h"

namespace megatron::kernels::cuda {
namespace {

template <class T>
struct Rows {
  const T* x;
  T* out;
  const int64_t* samples;  // null: all is kept
  int64_t width;
  uint32_t first_row, length;
  uint32_t items, chunks;  // of all rows, of one
  uint64_t key;
  uint32_t threshold;
  float scale;
  bool whole;
};

template <class T>
__global__ void __launch_bounds__(kThreads) drop(Rows<T> rows) {
  constexpr int N = kChunk<T>;
  const uint32_t item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= rows.items) return;
  const uint32_t row = item / rows.chunks;
  const auto channel = static_cast<int64_t>(item - row * rows.chunks) * N;
  const int64_t at = row * rows.width + channel, count = rows.width - channel;
  const Vector<T, N> x = load_chunk<N>(rows.x + at, count, rows.whole);
  if (rows.samples == nullptr) {
    store_chunk(rows.out + at, x, count, rows.whole);
    return;
  }
  const uint32_t of_all = rows.first_row + row, sample = of_all / rows.length;
  const uint32_t position = of_all - sample * rows.length;
  const int64_t number = rows.samples[sample];
  Vector<T, N> out;
#pragma unroll
  for (int group = 0; group < N / 4; ++group) {
    const PhiloxWords words =
        dropout_words(rows.key, number, position, static_cast<uint32_t>(channel / 4) + group);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float kept = to_float(x.at[group * 4 + j]) * rows.scale;
      out.at[group * 4 + j] = from_float<T>(words.at[j] >= rows.threshold ? kept : 0.0f);
    }
  }
  store_chunk(rows.out + at, out, count, rows.whole);
}

}  // namespace

void dropout(const DropoutArgs& args, Stream& stream) {
  check(args);
  const int64_t count = args.x.size(0), width = args.x.size(1);
  const DropoutArgs::Mask& mask = args.mask;
  for_storage_type("dropout", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (count * width == 0) return;
    const int64_t chunks = ceil_div(width, kChunk<T>);
    Rows<T> rows{.x = address_of<T>(args.x),
                 .out = address_of<T>(args.out),
                 .samples = nullptr,
                 .width = width,
                 .first_row = static_cast<uint32_t>(mask.first_row),
                 .length = 1,
                 .items = count_items("dropout", count * chunks),
                 .chunks = static_cast<uint32_t>(chunks),
                 .key = dropout_key(mask.seed, mask.stream),
                 .threshold = dropout_threshold(mask.p),
                 .scale = 1.0f / (1.0f - mask.p)};
    rows.whole = are_aligned({rows.x, rows.out}) && width % kChunk<T> == 0;
    if (mask.p > 0) {
      rows.samples = address_of<int64_t>(mask.samples);
      const int64_t samples = mask.samples.elements();
      const int64_t length = mask.length > 0 ? mask.length : count / samples;
      count_items("dropout", samples * length);
      rows.length = static_cast<uint32_t>(length);
    }
    launch("dropout", drop<T>, grid_for(rows.items), stream, rows);
  });
}

}  // namespace megatron::kernels::cuda
