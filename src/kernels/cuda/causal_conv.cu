#include "kernels/cuda/chunk.h"
#include "kernels/cuda/divisor.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/partial_rows.h"
#include "kernels/cuda/silu.h"
#include "kernels/cuda_scratch/scratch.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

// Tokens of a thread, over which the window moves in registers. A tile has all tokens that read the
// tail before a piece.
constexpr int kTile = 16;
static_assert(kTile >= kMaxConvolution);
// Width of which there are kernels; those for kMaxConvolution compute all others.
constexpr int kUsualWidth = 4;

// Tensor [B,S,C] as rows.
template <class T>
struct TokenRows {
  T* p;
  int64_t batch, token;
  __device__ T* at(int64_t b, int64_t s) const { return p + b * batch + s * token; }
};
template <class T>
TokenRows<T> token_rows(const Tensor& t) {
  return {static_cast<T*>(t.address()), t.stride(0), t.stride(1)};
}

// Threads take chunks of channels, adjacent threads adjacent chunks.
template <class T>
struct Convolution {
  const T *weight, *bias;  // bias: may be null
  TokenRows<const T> x;
  int64_t length;  // S
  int channels, width;
  uint32_t items;  // tiles or blocks, times chunks
  Divisor chunks;  // per row
  bool whole;
};

// Channels of a thread: fewer if windows are long, so that they fit into registers.
template <class T, int K>
constexpr int kChannels = K > kUsualWidth ? 4 : kChunk<T>;

// A chunk of channels with its weights, of which the last K - unused are used.
template <class T, int K, int N>
struct Channels {
  static_assert(N <= kChunk<T>);
  __device__ explicit Channels(const Convolution<T>& call) : whole(call.whole) {
    const uint32_t item = blockIdx.x * kThreads + threadIdx.x;
    row = call.chunks.quotient(item);
    column = static_cast<int>(item - row * call.chunks.value()) * N;
    count = item < call.items ? call.channels - column : 0;
    unused = K == kUsualWidth ? 0 : K - call.width;  // known to the compiler for the usual width
#pragma unroll
    for (int j = 0; j < N; ++j) {
      bias[j] = call.bias != nullptr && j < count ? to_float(call.bias[column + j]) : 0.0f;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        weight[k][j] = 0;
        if (k >= unused && j < count)
          weight[k][j] = to_float(call.weight[(column + j) * int64_t{call.width} + k - unused]);
      }
    }
  }
  __device__ bool exist() const { return count > 0; }

  __device__ void load(const T* from, float (&to)[N]) const {
    const Vector<T, N> v = load_chunk<N>(from + column, count, whole);
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = to_float(v.at[j]);
  }
  __device__ void store(const float (&from)[N], T* to) const {
    Vector<T, N> v;
#pragma unroll
    for (int j = 0; j < N; ++j) v.at[j] = from_float<T>(from[j]);
    store_chunk(to + column, v, count, whole);
  }
  __device__ void copy(const T* from, T* to) const {
    store_chunk(to + column, load_chunk<N>(from + column, count, whole), count, whole);
  }
  __device__ void fill(T* to) const {
    const Vector<T, N> zeros{};
    store_chunk(to + column, zeros, count, whole);
  }
  __device__ void sum(const float (&window)[K][N], float (&s)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      s[j] = bias[j];
#pragma unroll
      for (int k = 0; k < K; ++k)
        if (k >= unused) s[j] = fmaf(weight[k][j], window[k][j], s[j]);
    }
  }

  float weight[K][N], bias[N];
  uint32_t row;
  int column, count, unused;
  bool whole;
};

template <int N>
__device__ void clear(float (&values)[N]) {
#pragma unroll
  for (float& value : values) value = 0;
}

// Computes tokens [begin, end) of sequence b. row(s) is the input of token s, null for zeros;
// begins(s) tells whether a document begins there.
template <class T, int K, int N, class Row, class Begins>
__device__ void convolve_tile(const Channels<T, K, N>& channels, const TokenRows<T>& out, int64_t b,
                              int64_t begin, int64_t end, Row row, Begins begins) {
  float window[K][N];
  const auto load = [&](int64_t s, float(&to)[N]) {
    const T* from = row(s);
    if (from == nullptr) return clear(to);
    channels.load(from, to);
  };
#pragma unroll
  for (int k = 0; k + 1 < K; ++k) load(begin - (K - 1) + k, window[k]);
  for (int64_t s = begin; s < end; ++s) {
    if (begins(s)) {
#pragma unroll
      for (int k = 0; k + 1 < K; ++k) clear(window[k]);
    }
    load(s, window[K - 1]);
    float y[N];
    channels.sum(window, y);
#pragma unroll
    for (int j = 0; j < N; ++j) y[j] = Silu::value(y[j]);
    channels.store(y, out.at(b, s));
#pragma unroll
    for (int k = 0; k + 1 < K; ++k) {
#pragma unroll
      for (int j = 0; j < N; ++j) window[k][j] = window[k + 1][j];
    }
  }
}

// Tile of a row of Channels, of `tiles` of each sequence.
struct Tile {
  __device__ Tile(uint32_t row, const Divisor& tiles, int64_t length) : b(tiles.quotient(row)) {
    begin = (row - b * tiles.value()) * int64_t{kTile};
    end = begin + kTile < length ? begin + kTile : length;
  }
  uint32_t b;
  int64_t begin, end;
};

template <class T, int K>
__global__ void __launch_bounds__(kThreads)
    convolve(Convolution<T> call, Divisor tiles, const int32_t* starts, TokenRows<T> out) {
  const Channels<T, K, kChannels<T, K>> channels(call);
  if (!channels.exist()) return;
  const Tile tile(channels.row, tiles, call.length);
  const int32_t* start = starts == nullptr ? nullptr : starts + tile.b * call.length;
  const int64_t first = start == nullptr ? 0 : start[tile.begin];
  convolve_tile(
      channels, out, tile.b, tile.begin, tile.end,
      [&](int64_t s) { return s >= first ? call.x.at(tile.b, s) : nullptr; },
      [&](int64_t s) { return start != nullptr && start[s] == s; });
}

template <class T>
struct Gradients {
  TokenRows<const T> dout;
  TokenRows<T> dx;
  const int32_t* starts;
  float *dweights, *dbiases;  // partial rows, one per block; may be null
  int64_t tokens, height;
};

// Gradients of a block of tokens, from the last to the first. Sums of dx also contain tokens after
// the block, whose terms are computed again.
template <class T, int K>
__global__ void __launch_bounds__(kThreads) differentiate(Convolution<T> call, Gradients<T> to) {
  constexpr int N = 4;
  const Channels<T, K, N> channels(call);
  if (!channels.exist()) return;
  const int64_t begin = channels.row * to.height,
                end = begin + to.height < to.tokens ? begin + to.height : to.tokens;
  const int64_t last = end + call.width - 1 < to.tokens ? end + call.width - 1 : to.tokens;
  float window[K][N], later[K][N], dweight[K][N] = {}, dbias[N] = {};  // later[j]: ds, j + 1 later
  int64_t b = (last - 1) / call.length, s = (last - 1) % call.length, first_behind = -1;
  for (int64_t t = last - 1; t >= begin; --t, --s) {
    if (s < 0) s = call.length - 1, --b;
    const int64_t first = to.starts == nullptr ? 0 : to.starts[t];
    const auto load = [&](int64_t at, float(&values)[N]) {
      if (at < first) return clear(values);
      channels.load(call.x.at(b, at), values);
    };
    if (t == last - 1 || s == call.length - 1 || first != first_behind) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        clear(later[k]);
        load(s - (K - 1) + k, window[k]);
      }
    } else {
#pragma unroll
      for (int k = K - 1; k > 0; --k) {
#pragma unroll
        for (int j = 0; j < N; ++j) window[k][j] = window[k - 1][j];
      }
      load(s - (K - 1), window[0]);
    }
    first_behind = first;
    float sum[N], ds[N];
    channels.sum(window, sum);
    channels.load(to.dout.at(b, s), ds);
#pragma unroll
    for (int j = 0; j < N; ++j) ds[j] *= Silu::slope(sum[j]).derivative;
    if (t < end) {
      float dx[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        dx[j] = channels.weight[K - 1][j] * ds[j];
        dbias[j] += ds[j];
#pragma unroll
        for (int k = K - 1; k >= 0; --k) {
          if (k < channels.unused) continue;
          if (k < K - 1) dx[j] = fmaf(channels.weight[k][j], later[K - 2 - k][j], dx[j]);
          dweight[k][j] = fmaf(ds[j], window[k][j], dweight[k][j]);
        }
      }
      channels.store(dx, to.dx.at(b, s));
    }
#pragma unroll
    for (int k = K - 2; k > 0; --k) {
#pragma unroll
      for (int j = 0; j < N; ++j) later[k][j] = later[k - 1][j];
    }
#pragma unroll
    for (int j = 0; j < N; ++j) later[0][j] = ds[j];
  }
  const int64_t at = int64_t{channels.row} * call.channels + channels.column;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (j >= channels.count) continue;
    if (to.dbiases != nullptr) to.dbiases[at + j] = dbias[j];
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (to.dweights != nullptr && k >= channels.unused)
        to.dweights[(at + j) * call.width + k - channels.unused] = dweight[k][j];
  }
}

template <class T>
struct Tails {
  const int32_t *positions, *table;
  T* tails;
  int64_t slots, blocks, block_size;
};

// The piece of text b, and its tails.
template <class T>
struct Piece {
  __device__ Piece(const Convolution<T>& call_, const Tails<T>& all_, int64_t b_)
      : call(call_), all(all_), b(b_), kept(call_.width - 1) {
    const int32_t* positions = all.positions + b * call.length;
    int64_t end = call.length;  // the first padding is in [count, end]
    while (count < end) {
      const int64_t middle = (count + end) / 2;
      if (positions[middle] < 0) {
        end = middle;
      } else {
        count = middle + 1;
      }
    }
    if (count > 0) begin = positions[0];
    if (begin > 0) before = tail_after(begin - 1);
  }
  // Null if there is no such slot.
  __device__ T* tail_after(int64_t token) const {
    const int64_t block = token / all.block_size;
    const int64_t slot = block < all.blocks ? all.table[b * all.blocks + block] : -1;
    return slot >= 0 && slot < all.slots ? all.tails + slot * kept * call.channels : nullptr;
  }
  // Input s of the piece, or before it; null for zeros.
  __device__ const T* input(int64_t s) const {
    if (s >= 0) return call.x.at(b, s);
    return before == nullptr || s < -kept ? nullptr : before + (kept + s) * call.channels;
  }
  // Stores the tail after the block of token s.
  template <class Channels>
  __device__ void store_tail(const Channels& channels, int64_t s) const {
    const int64_t q = begin + s, left = s + all.block_size - q % all.block_size;
    const int64_t end = left < count ? left : count;
    T* tail = tail_after(q);
    if (tail == nullptr) return;
    for (int row = 0; row < kept; ++row, tail += call.channels) {
      const T* from = input(end - kept + row);
      if (from != nullptr) {
        channels.copy(from, tail);
      } else {
        channels.fill(tail);
      }
    }
  }

  const Convolution<T>& call;
  const Tails<T>& all;
  const int64_t b;
  const int kept;
  int64_t count = 0, begin = 0;  // tokens without padding, index of the first
  const T* before = nullptr;
};

// The slot that may be that of the tail before a piece is the last to be written, by the threads
// that read it.
template <class T, int K>
__global__ void __launch_bounds__(kThreads)
    convolve_pieces(Convolution<T> call, Divisor tiles, Tails<T> tails, TokenRows<T> out) {
  const Channels<T, K, kChannels<T, K>> channels(call);
  if (!channels.exist()) return;
  const Tile tile(channels.row, tiles, call.length);
  const Piece<T> piece(call, tails, tile.b);
  const int64_t end = tile.end < piece.count ? tile.end : piece.count;
  convolve_tile(
      channels, out, tile.b, tile.begin, end, [&](int64_t s) { return piece.input(s); },
      [](int64_t) { return false; });
  for (int64_t s = tile.begin > end ? tile.begin : end; s < tile.end; ++s)
    channels.fill(out.at(tile.b, s));
  const int64_t size = tails.block_size, q = piece.begin + tile.begin;
  for (int64_t s = tile.begin + (size - q % size) % size; s < end; s += size)
    if (s > 0) piece.store_tail(channels, s);
  if (tile.begin == 0 && piece.count > 0) piece.store_tail(channels, 0);
}

// Calls f(T{}, std::integral_constant<int, K>) with the storage type and the kernels' K.
template <class F>
void for_convolution(const char* kernel, const Tensor& weight, F&& f) {
  for_storage_type(kernel, weight.dtype(), [&](auto type) {
    weight.size(1) == kUsualWidth ? f(type, std::integral_constant<int, kUsualWidth>())
                                  : f(type, std::integral_constant<int, int{kMaxConvolution}>());
  });
}

// rows: tiles or blocks; n: channels of a thread.
template <class T, class Args>
Convolution<T> convolution_of(const char* kernel, const Args& args, int64_t rows, int n,
                              std::initializer_list<Tensor> tensors) {
  const int64_t channels = args.x.size(2), chunks = std::max<int64_t>(1, ceil_div(channels, n));
  bool whole = channels % n == 0;
  for (const Tensor& t : tensors)
    whole = whole && are_aligned({t.address()}) && t.stride(0) % n == 0 && t.stride(1) % n == 0;
  return {.weight = address_of<T>(args.weight),
          .bias = address_of<T>(args.bias),
          .x = token_rows<const T>(args.x),
          .length = args.x.size(1),
          .channels = static_cast<int>(channels),
          .width = static_cast<int>(args.weight.size(1)),
          .items = count_items(kernel, rows * chunks),
          .chunks = Divisor(static_cast<uint32_t>(chunks)),
          .whole = whole};
}

// Tiles of a sequence.
int64_t tiles_of(const Tensor& x) { return ceil_div(x.size(1), int64_t{kTile}); }

}  // namespace

void causal_conv(const CausalConvArgs& args, Stream& stream) {
  for_convolution("causal_conv", args.weight, [&](auto type, auto size) {
    using T = decltype(type);
    if (args.x.elements() == 0) return;
    const int64_t tiles = tiles_of(args.x);
    const auto call = convolution_of<T>("causal_conv", args, args.x.size(0) * tiles,
                                        kChannels<T, size>, {args.x, args.out});
    launch("causal_conv", convolve<T, size>, grid_for(call.items), stream, call,
           Divisor(static_cast<uint32_t>(tiles)), address_of<int32_t>(args.starts),
           token_rows<T>(args.out));
  });
}

void causal_conv_backward(const CausalConvBackwardArgs& args, Stream& stream) {
  const ConvPartials partials = causal_conv_backward_scratch(args, stream);
  const ConvBlocks blocks(args.x.size(0) * args.x.size(1));
  for_convolution("causal_conv_backward", args.weight, [&](auto type, auto size) {
    using T = decltype(type);
    if (args.x.elements() == 0) return;
    const auto call = convolution_of<T>("causal_conv_backward", args, blocks.count, 4,
                                        {args.x, args.dout, args.dx});
    const Gradients<T> to{.dout = token_rows<const T>(args.dout),
                          .dx = token_rows<T>(args.dx),
                          .starts = address_of<int32_t>(args.starts),
                          .dweights = address_of<float>(partials.dweights),
                          .dbiases = address_of<float>(partials.dbiases),
                          .tokens = blocks.tokens,
                          .height = blocks.height};
    launch("causal_conv_backward", differentiate<T, size>, grid_for(call.items), stream, call, to);
  });
  if (partials.dweights.defined()) add_partial_rows(partials.dweights, args.dweight, stream);
  if (partials.dbiases.defined()) add_partial_rows(partials.dbiases, args.dbias, stream);
}

void causal_conv_continued(const CausalConvContinuedArgs& args, Stream& stream) {
  for_convolution("causal_conv_continued", args.weight, [&](auto type, auto size) {
    using T = decltype(type);
    if (args.x.elements() == 0) return;
    const int64_t tiles = tiles_of(args.x);
    const auto call = convolution_of<T>("causal_conv_continued", args, args.x.size(0) * tiles,
                                        kChannels<T, size>, {args.x, args.out, args.tails});
    const Tails<T> tails{.positions = address_of<int32_t>(args.positions),
                         .table = address_of<int32_t>(args.block_table),
                         .tails = address_of<T>(args.tails),
                         .slots = args.tails.size(0),
                         .blocks = args.block_table.size(1),
                         .block_size = args.block_size};
    launch("causal_conv_continued", convolve_pieces<T, size>, grid_for(call.items), stream, call,
           Divisor(static_cast<uint32_t>(tiles)), tails, token_rows<T>(args.out));
  });
}

}  // namespace megatron::kernels::cuda
