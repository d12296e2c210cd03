#include "kernels/cuda/chunk.h"
#include "kernels/cuda/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

// Heads per thread, which share the same angles.
constexpr int kHeads = 4;

// An item is a chunk of the rotated pairs, or of the elements after them, of kHeads heads of one
// token.
template <class T>
struct Heads {
  const T* x;
  T* out;
  const float *cos, *sin;
  const int32_t* positions;
  int64_t x_token, x_head, out_token, out_head;  // strides
  int heads, width, half, table;                 // table: positions in the table
  uint32_t items, groups, chunks;  // groups of heads; rotated and copied chunks per head
  uint32_t turned;                 // number of rotated chunks; they come first
  bool interleaved, inverse, whole;
};

// Chunks with the first and with the second elements of pairs.
template <class T>
struct Pairs {
  Vector<T, kChunk<T>> first, second;
};

// Reads the pairs of a head from pair i on; `count` of them exist.
template <class T>
__device__ Pairs<T> load_pairs(const Heads<T>& a, const T* head, int i, int count) {
  constexpr int N = kChunk<T>;
  if (!a.interleaved) {
    return {load_chunk<N>(head + i, count, a.whole),
            load_chunk<N>(head + a.half + i, count, a.whole)};
  }
  const Vector<T, N> low = load_chunk<N>(head + 2 * i, 2 * count, a.whole);
  const Vector<T, N> high = load_chunk<N>(head + 2 * i + N, 2 * count - N, a.whole);
  Pairs<T> pairs;
#pragma unroll
  for (int j = 0; j < N / 2; ++j) {
    pairs.first.at[j] = low.at[2 * j];
    pairs.second.at[j] = low.at[2 * j + 1];
    pairs.first.at[N / 2 + j] = high.at[2 * j];
    pairs.second.at[N / 2 + j] = high.at[2 * j + 1];
  }
  return pairs;
}
template <class T>
__device__ void store_pairs(const Heads<T>& a, T* head, const Pairs<T>& pairs, int i, int count) {
  constexpr int N = kChunk<T>;
  if (!a.interleaved) {
    store_chunk(head + i, pairs.first, count, a.whole);
    store_chunk(head + a.half + i, pairs.second, count, a.whole);
    return;
  }
  Vector<T, N> low, high;
#pragma unroll
  for (int j = 0; j < N / 2; ++j) {
    low.at[2 * j] = pairs.first.at[j];
    low.at[2 * j + 1] = pairs.second.at[j];
    high.at[2 * j] = pairs.first.at[N / 2 + j];
    high.at[2 * j + 1] = pairs.second.at[N / 2 + j];
  }
  store_chunk(head + 2 * i, low, 2 * count, a.whole);
  store_chunk(head + 2 * i + N, high, 2 * count - N, a.whole);
}

template <class T>
__device__ void turn(const Heads<T>& a, const T* from, T* to, int position, int i, int present) {
  constexpr int N = kChunk<T>;
  const int count = a.half - i;
  Pairs<T> x[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h)
    x[h] = load_pairs(a, from + h * a.x_head, i, h < present ? count : 0);
  const bool known = position >= 0 && position < a.table;
  const int64_t row = known ? static_cast<int64_t>(position) * a.half : 0;
  const Vector<float, N> cos = load_chunk<N>(a.cos + row + i, known ? count : 0, a.whole);
  const Vector<float, N> sin = load_chunk<N>(a.sin + row + i, known ? count : 0, a.whole);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float c = known ? cos.at[j] : NAN, s = a.inverse ? -sin.at[j] : sin.at[j];
      const float first = to_float(x[h].first.at[j]), second = to_float(x[h].second.at[j]);
      x[h].first.at[j] = from_float<T>(fmaf(first, c, -(second * s)));
      x[h].second.at[j] = from_float<T>(fmaf(second, c, first * s));
    }
    if (h < present) store_pairs(a, to + h * a.out_head, x[h], i, count);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) turn_heads(Heads<T> a) {
  constexpr int N = kChunk<T>;
  const uint32_t item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= a.items) return;
  const uint32_t of_token = item / a.chunks, chunk = item - of_token * a.chunks;
  const uint32_t token = of_token / a.groups;
  const int head = static_cast<int>(of_token - token * a.groups) * kHeads;
  const T* from = a.x + token * a.x_token + head * a.x_head;
  T* to = a.out + token * a.out_token + head * a.out_head;
  const int present = a.heads - head;
  if (chunk < a.turned) {
    turn(a, from, to, a.positions[token], static_cast<int>(chunk) * N, present);
    return;
  }
  const int i = 2 * a.half + static_cast<int>(chunk - a.turned) * N, count = a.width - i;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h >= present) break;
    store_chunk(to + h * a.out_head + i, load_chunk<N>(from + h * a.x_head + i, count, a.whole),
                count, a.whole);
  }
}

}  // namespace

void rope(const RopeArgs& args, Stream& stream) {
  for_storage_type("rope", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int N = kChunk<T>;
    if (args.x.elements() == 0) return;
    const int64_t heads = args.x.size(1), width = args.x.size(2), half = args.cos.size(1);
    Heads<T> a{.x = address_of<T>(args.x),
               .out = address_of<T>(args.out),
               .cos = address_of<float>(args.cos),
               .sin = address_of<float>(args.sin),
               .positions = address_of<int32_t>(args.positions),
               .x_token = args.x.stride(0),
               .x_head = args.x.stride(1),
               .out_token = args.out.stride(0),
               .out_head = args.out.stride(1),
               .heads = static_cast<int>(heads),
               .width = static_cast<int>(width),
               .half = static_cast<int>(half),
               .table = static_cast<int>(args.cos.size(0)),
               .items = 0,
               .groups = static_cast<uint32_t>(ceil_div(heads, kHeads)),
               .chunks = 0,
               .turned = static_cast<uint32_t>(ceil_div(half, N)),
               .interleaved = args.interleaved,
               .inverse = args.inverse,
               .whole = false};
    const bool in_place = a.x == a.out && a.x_token == a.out_token && a.x_head == a.out_head;
    const int64_t copied = in_place ? 0 : ceil_div(width - 2 * half, N);
    a.chunks = a.turned + static_cast<uint32_t>(copied);
    if (a.chunks == 0) return;
    a.items = count_items("rope", args.x.size(0) * a.groups * a.chunks);
    a.whole = are_aligned({a.x, a.out, a.cos, a.sin}) && half % N == 0 && width % N == 0 &&
              (a.x_token | a.x_head | a.out_token | a.out_head) % N == 0;
    launch("rope", turn_heads<T>, grid_for(a.items), stream, a);
  });
}

}  // namespace megatron::kernels::cuda
