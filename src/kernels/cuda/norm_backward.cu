#include "kernels/cuda/chunk.h"
#include "kernels/cuda/dynamic_shared.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/partial_rows.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda_scratch/scratch.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

// A block of threads processes a block of rows. A team of its threads processes one row at a time;
// each thread keeps kKept chunks of the row in registers, and the dweight and dbias sums of those
// columns.
constexpr int kKept = 2;
constexpr int kMaxThreads = 512, kMinThreads = 256;
// Threads per block for rows too long for that; their column sums are kept in memory.
constexpr int kLongRowThreads = 1024;

template <class T>
struct Rows {
  const T *dnormed, *dsum_in, *sum, *weight;  // dsum_in: may be null
  const float *mean, *rstd;                   // mean: LayerNorm only
  T* dsum;
  float *dweights, *dbiases;  // partial rows, one per block
  int64_t rows;
  int height;       // rows per block
  int width, team;  // team: threads per team
  float offset;     // added to the weight
  bool whole;
};

// Sums over a row of g = dnormed weight and of g xhat.
struct Sums {
  float g, g_xhat;
};

// Returns the team's sums in each of its threads. Every thread of the block calls this. `partial`
// holds one value per warp; the next call must use another.
__device__ Sums team_sums(Sums mine, Sums* partial, int team_warps) {
  mine = {warp_sum(mine.g), warp_sum(mine.g_xhat)};
  if (team_warps == 1) return mine;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (lane == 0) partial[warp] = mine;
  __syncthreads();
  const Sums other = lane < team_warps ? partial[warp / team_warps * team_warps + lane] : Sums{};
  return {warp_sum(other.g), warp_sum(other.g_xhat)};
}

// Values common to all elements of a row.
struct RowFactors {
  float mean = 0, rstd = 0;
  float mean_g = 0, mean_g_xhat = 0;
};

template <class T>
struct Chunks {
  Vector<T, kChunk<T>> sum, dnormed, dsum_in;
};

// Terms of one element. Products are rounded before they are added. If a row's terms cancel, as
// with two columns, only their rounding errors remain, and these must match the definition's.
struct Terms {
  float xhat, d, g;
};
template <class T>
__device__ Terms terms_of(T sum, T dnormed, T weight, float offset, const RowFactors& row) {
  const float d = to_float(dnormed);
  return {__fmul_rn(to_float(sum) - row.mean, row.rstd), d,
          __fmul_rn(d, to_float(weight) + offset)};
}
__device__ void add(Sums& sums, const Terms& terms) {
  sums.g += terms.g;
  sums.g_xhat += __fmul_rn(terms.g, terms.xhat);
}

template <class T>
__device__ Vector<T, kChunk<T>> gradient(const Chunks<T>& in, const Vector<T, kChunk<T>>& weight,
                                         float offset, const RowFactors& row) {
  Vector<T, kChunk<T>> out;
#pragma unroll
  for (int j = 0; j < kChunk<T>; ++j) {
    const Terms terms = terms_of(in.sum.at[j], in.dnormed.at[j], weight.at[j], offset, row);
    const float centred = terms.g - row.mean_g - __fmul_rn(terms.xhat, row.mean_g_xhat);
    out.at[j] = from_float<T>(fmaf(row.rstd, centred, to_float(in.dsum_in.at[j])));
  }
  return out;
}

template <class T>
__device__ Chunks<T> load_chunks(const Rows<T>& rows, int64_t at, int i, bool present) {
  constexpr int N = kChunk<T>;
  const int count = present ? rows.width - i : 0;
  Chunks<T> in{.sum = load_chunk<N>(rows.sum + at + i, count, rows.whole),
               .dnormed = load_chunk<N>(rows.dnormed + at + i, count, rows.whole),
               .dsum_in = {}};
  if (rows.dsum_in != nullptr) in.dsum_in = load_chunk<N>(rows.dsum_in + at + i, count, rows.whole);
  return in;
}

// Prefetches what load_chunks will read into the L2 cache.
template <class T>
__device__ void prefetch_chunks(const Rows<T>& rows, int64_t at, int i) {
  if (i >= rows.width) return;
  prefetch(rows.sum + at + i);
  prefetch(rows.dnormed + at + i);
  if (rows.dsum_in != nullptr) prefetch(rows.dsum_in + at + i);
}

// Adds the teams' column sums [kKept][chunk] in the order of the teams; the last team writes the
// result to a partial row. `shared` has `width` elements.
template <class T>
__device__ void add_teams(const Rows<T>& rows, const float (&sums)[kKept][kChunk<T>], float* shared,
                          float* to, int team, int teams, int lane) {
  constexpr int N = kChunk<T>;
  for (int turn = 0; turn < teams; ++turn) {
    if (turn == team) {
      float* target = turn == teams - 1 ? to : shared;
#pragma unroll
      for (int k = 0; k < kKept; ++k) {
        const int i = (k * rows.team + lane) * N, count = rows.width - i;
        auto sum = load_chunk<N>(shared + i, turn == 0 ? 0 : count, rows.whole);
#pragma unroll
        for (int j = 0; j < N; ++j) sum.at[j] += sums[k][j];
        store_chunk(target + i, sum, count, rows.whole);
      }
    }
    __syncthreads();
  }
}

template <class T, NormKind kKind>
__global__ void __launch_bounds__(kMaxThreads) differentiate(Rows<T> rows) {
  constexpr bool kLayer = kKind == NormKind::layer;
  constexpr int N = kChunk<T>, K = kKept;
  __shared__ Sums partial[2][kWarp];
  const int team = threadIdx.x / rows.team, lane = threadIdx.x % rows.team;
  const int teams = blockDim.x / rows.team;
  const float per_element = 1.0f / static_cast<float>(rows.width);

  float dweight[K][N] = {}, dbias[kLayer ? K : 1][N] = {};
  Vector<T, N> weight[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = (k * rows.team + lane) * N;
    weight[k] = load_chunk<N>(rows.weight + i, rows.width - i, rows.whole);
  }
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rows.height;
  const int64_t end = begin + rows.height < rows.rows ? begin + rows.height : rows.rows;
  int turn = 0;
  for (int64_t first = begin; first < end; first += teams) {
    const int64_t row = first + team, at = row * rows.width;
    const bool present = row < end;
    Chunks<T> in[K];
#pragma unroll
    for (int k = 0; k < K; ++k) in[k] = load_chunks(rows, at, (k * rows.team + lane) * N, present);
    if (row + teams < end) {
#pragma unroll
      for (int k = 0; k < K; ++k)
        prefetch_chunks(rows, at + teams * rows.width, (k * rows.team + lane) * N);
    }
    RowFactors factors;
    if (present) {
      factors.rstd = rows.rstd[row];
      if constexpr (kLayer) factors.mean = rows.mean[row];
    }
    Sums sums{};
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const Terms terms =
            terms_of(in[k].sum.at[j], in[k].dnormed.at[j], weight[k].at[j], rows.offset, factors);
        dweight[k][j] = fmaf(terms.d, terms.xhat, dweight[k][j]);
        if constexpr (kLayer) dbias[k][j] += terms.d;
        add(sums, terms);
      }
    }
    sums = team_sums(sums, partial[turn], rows.team / kWarp);
    turn ^= 1;
    if constexpr (kLayer) factors.mean_g = sums.g * per_element;
    factors.mean_g_xhat = sums.g_xhat * per_element;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = (k * rows.team + lane) * N;
      if (present && i < rows.width) {
        store_chunk(rows.dsum + at + i, gradient(in[k], weight[k], rows.offset, factors),
                    rows.width - i, rows.whole);
      }
    }
  }
  auto* shared = reinterpret_cast<float*>(dynamic_shared());
  const int64_t to = static_cast<int64_t>(blockIdx.x) * rows.width;
  add_teams<T>(rows, dweight, shared, rows.dweights + to, team, teams, lane);
  if (kLayer && rows.dbiases == nullptr) return;
  if constexpr (kLayer) add_teams<T>(rows, dbias, shared, rows.dbiases + to, team, teams, lane);
}

// Rows are read twice, the second time from the cache.
template <class T, NormKind kKind>
__global__ void __launch_bounds__(kLongRowThreads) differentiate_long(Rows<T> rows) {
  constexpr bool kLayer = kKind == NormKind::layer;
  constexpr int N = kChunk<T>;
  __shared__ float partial[kWarp];
  const int step = static_cast<int>(blockDim.x) * N;
  float* dweight = rows.dweights + static_cast<int64_t>(blockIdx.x) * rows.width;
  float* dbias = kLayer && rows.dbiases != nullptr
                     ? rows.dbiases + static_cast<int64_t>(blockIdx.x) * rows.width
                     : nullptr;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rows.height;
  const int64_t end = begin + rows.height < rows.rows ? begin + rows.height : rows.rows;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * rows.width;
    RowFactors factors{.mean = kLayer ? rows.mean[row] : 0.0f, .rstd = rows.rstd[row]};
    Sums sums{};
    for (int i = static_cast<int>(threadIdx.x) * N; i < rows.width; i += step) {
      const Chunks<T> in = load_chunks(rows, at, i, true);
      const Vector<T, N> weight = load_chunk<N>(rows.weight + i, rows.width - i, rows.whole);
      const int before = row == begin ? 0 : rows.width - i;
      Vector<float, N> dw = load_chunk<N>(dweight + i, before, rows.whole), db{};
      if (kLayer && dbias != nullptr) db = load_chunk<N>(dbias + i, before, rows.whole);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const Terms terms =
            terms_of(in.sum.at[j], in.dnormed.at[j], weight.at[j], rows.offset, factors);
        dw.at[j] = fmaf(terms.d, terms.xhat, dw.at[j]);
        db.at[j] += terms.d;
        add(sums, terms);
      }
      store_chunk(dweight + i, dw, rows.width - i, rows.whole);
      if (kLayer && dbias != nullptr) store_chunk(dbias + i, db, rows.width - i, rows.whole);
    }
    const auto width = static_cast<float>(rows.width);
    if constexpr (kLayer) factors.mean_g = block_sum(sums.g, partial) / width;
    factors.mean_g_xhat = block_sum(sums.g_xhat, partial) / width;
    for (int i = static_cast<int>(threadIdx.x) * N; i < rows.width; i += step) {
      const Vector<T, N> weight = load_chunk<N>(rows.weight + i, rows.width - i, rows.whole);
      store_chunk(rows.dsum + at + i,
                  gradient(load_chunks(rows, at, i, true), weight, rows.offset, factors),
                  rows.width - i, rows.whole);
    }
  }
}

template <class T, NormKind kKind>
void differentiate_rows(const char* kernel, Rows<T> rows, int64_t blocks, Stream& stream) {
  const int64_t threads = ceil_div(ceil_div(rows.width, kChunk<T>), kKept);
  Grid grid{.blocks = dim3(static_cast<unsigned>(blocks)), .threads = dim3(kLongRowThreads)};
  if (threads > kMaxThreads)
    return launch(kernel, differentiate_long<T, kKind>, grid, stream, rows);
  rows.team = static_cast<int>(ceil_div(threads, kWarp) * kWarp);
  const int teams = std::clamp(kMinThreads / rows.team, 1, rows.height);
  grid.threads = dim3(static_cast<unsigned>(teams * rows.team));
  if (teams > 1) grid.dynamic_shared = static_cast<size_t>(rows.width) * sizeof(float);
  launch(kernel, differentiate<T, kKind>, grid, stream, rows);
}

template <NormKind kKind>
void backward(const char* kernel, const AddNormBackwardArgs& args, Stream& stream) {
  const int64_t width = args.sum.size(1);
  const NormBlocks blocks(args.sum.size(0));
  const NormPartials partials = norm_backward_scratch(args, kKind, stream);
  for_storage_type(kernel, args.sum.dtype(), [&](auto type) {
    using T = decltype(type);
    Rows<T> rows{.dnormed = address_of<T>(args.dnormed),
                 .dsum_in = address_of<T>(args.dsum_in),
                 .sum = address_of<T>(args.sum),
                 .weight = address_of<T>(args.weight),
                 .mean = address_of<float>(args.mean),
                 .rstd = address_of<float>(args.rstd),
                 .dsum = address_of<T>(args.dsum),
                 .dweights = address_of<float>(partials.dweights),
                 .dbiases = address_of<float>(partials.dbiases),
                 .rows = blocks.rows,
                 .height = static_cast<int>(blocks.height),
                 .width = static_cast<int>(width),
                 .team = 0,
                 .offset = static_cast<float>(args.weight_offset),
                 .whole = false};
    rows.whole = width % kChunk<T> == 0 &&
                 are_aligned({rows.dnormed, rows.dsum_in, rows.sum, rows.weight, rows.dsum});
    if (blocks.count > 0 && width > 0)
      differentiate_rows<T, kKind>(kernel, rows, blocks.count, stream);
  });
  add_partial_rows(partials.dweights, args.dweight, stream);
  if (partials.dbiases.defined()) add_partial_rows(partials.dbiases, args.dbias, stream);
}

}  // namespace

void add_rms_norm_backward(const AddNormBackwardArgs& args, Stream& stream) {
  backward<NormKind::rms>("add_rms_norm_backward", args, stream);
}
void add_layer_norm_backward(const AddNormBackwardArgs& args, Stream& stream) {
  backward<NormKind::layer>("add_layer_norm_backward", args, stream);
}

}  // namespace megatron::kernels::cuda
