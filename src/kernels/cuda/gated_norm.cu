#include "kernels/cuda/chunk.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/partial_rows.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/silu.h"
#include "kernels/cuda_scratch/scratch.h"
#include "kernels/gated_norm.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

constexpr int kMaxGroupThreads = 512;

// Rows [T,W] of a tensor.
template <class T>
struct TensorRows {
  T* p = nullptr;
  int64_t stride = 0;
};
template <class T>
TensorRows<T> rows_of(const Tensor& t) {
  return {static_cast<T*>(t.address()), t.stride(0)};
}

template <class T>
struct GatedRows {
  TensorRows<const T> x, z, dout;
  TensorRows<T> out, dz;  // out: or dx
  const T* weight;
  float* rstd;
  float* dweights;  // partial rows, one per block; may be null
  int64_t rows;
  int height;       // rows per block
  int width, size;  // of a row, of a group
  float eps;
  bool whole;
};

// A group of a row, whose chunks the threads of a block take in turn.
template <class T>
struct Group {
  static constexpr int N = kChunk<T>;
  using Values = Vector<T, N>;

  __device__ Group(const GatedRows<T>& all_, int group_)
      : all(all_), group(group_), step(static_cast<int>(blockDim.x) * N) {}
  __device__ int element(int round) const {
    return round * step + static_cast<int>(threadIdx.x) * N;
  }
  __device__ Values load(const T* row, int i) const {
    return load_chunk<N>(row + int64_t{group} * all.size + i, all.size - i, all.whole);
  }
  __device__ Values load(const TensorRows<const T>& rows, int64_t t, int i) const {
    return load(rows.p + t * rows.stride, i);
  }
  __device__ void store(const TensorRows<T>& rows, int64_t t, int i, const Values& values) const {
    store_chunk(rows.p + t * rows.stride + int64_t{group} * all.size + i, values, all.size - i,
                all.whole);
  }
  __device__ float& rstd(int64_t t) const { return all.rstd[t * (all.width / all.size) + group]; }

  const GatedRows<T>& all;
  const int group, step;
};

// Products x g of a chunk. Adds the squares of the norm's inputs, rounded, to `squares`; elements
// beyond the end are 0.
template <class T, GateOrder kOrder>
__device__ Vector<float, kChunk<T>> gate(const Vector<T, kChunk<T>>& x,
                                         const Vector<T, kChunk<T>>& z, float& squares) {
  Vector<float, kChunk<T>> products;
#pragma unroll
  for (int j = 0; j < kChunk<T>; ++j) {
    const float in = to_float(x.at[j]);
    products.at[j] = __fmul_rn(in, Silu::value(to_float(z.at[j])));
    const float normed = kOrder == GateOrder::gate_first ? products.at[j] : in;
    squares += __fmul_rn(normed, normed);
  }
  return products;
}

// One block per group of a row. Products of the first chunks stay in registers; those of longer
// groups are computed again.
template <class T, GateOrder kOrder>
__global__ void __launch_bounds__(kMaxGroupThreads) normalise(GatedRows<T> all) {
  constexpr int N = kChunk<T>, kKept = 4;
  __shared__ float partial[kWarp];
  const Group<T> group(all, static_cast<int>(blockIdx.y));
  const int64_t t = blockIdx.x;
  const auto products = [&](int i, float& squares) {
    return gate<T, kOrder>(group.load(all.x, t, i), group.load(all.z, t, i), squares);
  };
  Vector<float, N> kept[kKept];
  float squares = 0, unused = 0, rstd = 1;
#pragma unroll
  for (int k = 0; k < kKept; ++k) kept[k] = products(group.element(k), squares);
  if constexpr (kOrder != GateOrder::gate_only) {
    for (int i = group.element(kKept); i < all.size; i += group.step) products(i, squares);
    squares = block_sum(squares, partial) / static_cast<float>(all.size);
    rstd = 1.0f / sqrtf(squares + all.eps);
    if (threadIdx.x == 0) group.rstd(t) = rstd;
  }
  const auto store = [&](int i, const Vector<float, N>& values) {
    if (i >= all.size) return;
    Vector<T, N> weight{}, out;
    if (kOrder != GateOrder::gate_only) weight = group.load(all.weight, i);
#pragma unroll
    for (int j = 0; j < N; ++j)
      out.at[j] = from_float<T>(kOrder == GateOrder::gate_only
                                    ? values.at[j]
                                    : values.at[j] * rstd * to_float(weight.at[j]));
    group.store(all.out, t, i, out);
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) store(group.element(k), kept[k]);
  for (int i = group.element(kKept); i < all.size; i += group.step) store(i, products(i, unused));
}

// A chunk of the inputs of the gradients.
template <class T>
struct Inputs {
  static constexpr int N = kChunk<T>;
  __device__ Inputs(const Group<T>& group, int64_t t, int i)
      : x(group.load(group.all.x, t, i)),
        z(group.load(group.all.z, t, i)),
        dout(group.load(group.all.dout, t, i)) {}
  // dout n g, whichever of the norm and the gate is first: the term of the weight's gradient.
  __device__ float product(int j, float rstd) const {
    const float gated = __fmul_rn(to_float(x.at[j]), Silu::value(to_float(z.at[j])));
    return __fmul_rn(to_float(dout.at[j]), __fmul_rn(gated, rstd));
  }
  Vector<T, N> x, z, dout;
};

// With u the input of the norm, n = u rstd and dn the gradient of n: du = rstd (dn - n mean(dn n)).
template <class T, GateOrder kOrder>
__device__ void store_gradients(const Group<T>& group, const Inputs<T>& in,
                                const Vector<T, kChunk<T>>& weight, int64_t t, int i, float rstd,
                                float mean) {
  if (i >= group.all.size) return;
  Vector<T, kChunk<T>> dx, dz;
#pragma unroll
  for (int j = 0; j < kChunk<T>; ++j) {
    const float x = to_float(in.x.at[j]), z = to_float(in.z.at[j]), dout = to_float(in.dout.at[j]);
    const Slope g = Silu::slope(z);
    if constexpr (kOrder == GateOrder::gate_only) {
      dx.at[j] = from_float<T>(dout * g.value);
      dz.at[j] = from_float<T>(dout * x * g.derivative);
    } else if constexpr (kOrder == GateOrder::gate_first) {
      const float n = __fmul_rn(__fmul_rn(x, g.value), rstd);
      const float du = rstd * (__fmul_rn(dout, to_float(weight.at[j])) - __fmul_rn(n, mean));
      dx.at[j] = from_float<T>(du * g.value);
      dz.at[j] = from_float<T>(du * x * g.derivative);
    } else {
      const float n = __fmul_rn(x, rstd), d = __fmul_rn(dout, to_float(weight.at[j]));
      dx.at[j] = from_float<T>(rstd * (__fmul_rn(d, g.value) - __fmul_rn(n, mean)));
      dz.at[j] = from_float<T>(d * n * g.derivative);
    }
  }
  group.store(group.all.out, t, i, dx);
  group.store(group.all.dz, t, i, dz);
}

// One block per group and block of rows. The first chunks of a row and of the sums stay in
// registers; the sums of longer groups are kept in memory.
template <class T, GateOrder kOrder>
__global__ void __launch_bounds__(kMaxGroupThreads) differentiate(GatedRows<T> all) {
  constexpr bool kNorms = kOrder != GateOrder::gate_only;
  constexpr int N = kChunk<T>, kKept = 2;
  __shared__ float partial[kWarp];
  const Group<T> group(all, static_cast<int>(blockIdx.y));
  const int64_t begin = int64_t{blockIdx.x} * all.height;
  const int64_t end = begin + all.height < all.rows ? begin + all.height : all.rows;
  float* dweight = all.dweights == nullptr ? nullptr
                                           : all.dweights + int64_t{blockIdx.x} * all.width +
                                                 int64_t{group.group} * all.size;
  Vector<T, N> weight[kKept] = {};
  float sums[kKept][N] = {};
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if constexpr (kNorms) weight[k] = group.load(all.weight, group.element(k));
  for (int64_t t = begin; t < end; ++t) {
    if constexpr (!kNorms) {  // nothing to keep
      for (int i = group.element(0); i < all.size; i += group.step)
        store_gradients<T, kOrder>(group, {group, t, i}, weight[0], t, i, 1.0f, 0.0f);
      continue;
    }
    const Inputs<T> kept[kKept] = {{group, t, group.element(0)}, {group, t, group.element(1)}};
    const float rstd = kNorms ? group.rstd(t) : 1.0f;
    float mean = 0;
    if constexpr (kNorms) {
#pragma unroll
      for (int k = 0; k < kKept; ++k) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float product = kept[k].product(j, rstd);
          sums[k][j] += product;
          mean += __fmul_rn(product, to_float(weight[k].at[j]));
        }
      }
      for (int i = group.element(kKept); i < all.size; i += group.step) {
        const Inputs<T> in(group, t, i);
        const Vector<T, N> w = group.load(all.weight, i);
        for (int j = 0; j < N && i + j < all.size; ++j) {
          const float product = in.product(j, rstd);
          if (dweight != nullptr) dweight[i + j] = product + (t == begin ? 0 : dweight[i + j]);
          mean += __fmul_rn(product, to_float(w.at[j]));
        }
      }
      mean = block_sum(mean, partial) / static_cast<float>(all.size);
    }
#pragma unroll
    for (int k = 0; k < kKept; ++k)
      store_gradients<T, kOrder>(group, kept[k], weight[k], t, group.element(k), rstd, mean);
    for (int i = group.element(kKept); i < all.size; i += group.step) {
      Vector<T, N> w{};
      if constexpr (kNorms) w = group.load(all.weight, i);
      store_gradients<T, kOrder>(group, {group, t, i}, w, t, i, rstd, mean);
    }
  }
  if (dweight == nullptr) return;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (group.element(k) + j < all.size) dweight[group.element(k) + j] = sums[k][j];
  }
}

// Calls f(T{}, std::integral_constant<GateOrder, order>) with the storage type.
template <class F>
void for_gated(const char* kernel, DType type, GateOrder order, F&& f) {
  using enum GateOrder;
  for_storage_type(kernel, type, [&](auto stored) {
    switch (order) {
      case gate_first: return f(stored, std::integral_constant<GateOrder, gate_first>());
      case norm_first: return f(stored, std::integral_constant<GateOrder, norm_first>());
      case gate_only: return f(stored, std::integral_constant<GateOrder, gate_only>());
    }
  });
}

template <class T, class Args>
GatedRows<T> gated_rows(const Args& args) {
  GatedRows<T> all{};
  all.x = rows_of<const T>(args.x);
  all.z = rows_of<const T>(args.z);
  all.weight = address_of<T>(args.weight);
  all.rstd = address_of<float>(args.rstd);
  all.rows = args.x.size(0);
  all.width = static_cast<int>(args.x.size(1));
  all.size = static_cast<int>(args.x.size(1) / args.groups);
  return all;
}

// True if every chunk of these rows is complete and aligned.
template <class T>
bool whole_chunks(const GatedRows<T>& all, std::initializer_list<TensorRows<const T>> tensors) {
  bool whole = all.size % kChunk<T> == 0 && are_aligned({all.weight});
  for (const TensorRows<const T>& rows : tensors)
    whole = whole && are_aligned({rows.p}) && rows.stride % kChunk<T> == 0;
  return whole;
}

// Blocks of rows, for each group as many threads as take `kept` chunks.
template <class T>
Grid grid_of(const GatedRows<T>& all, int64_t blocks, int kept) {
  const int64_t threads = ceil_div(ceil_div(all.size, kChunk<T>), kept);
  return {
      .blocks = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(all.width / all.size)),
      .threads = dim3(static_cast<unsigned>(
          std::min<int64_t>(kMaxGroupThreads, ceil_div(threads, kWarp) * kWarp)))};
}

}  // namespace

void gated_norm(const GatedNormArgs& args, Stream& stream) {
  for_gated("gated_norm", args.x.dtype(), args.order, [&](auto type, auto order) {
    using T = decltype(type);
    if (args.x.elements() == 0) return;
    GatedRows<T> all = gated_rows<T>(args);
    all.out = rows_of<T>(args.out);
    all.eps = static_cast<float>(args.eps);
    all.whole = whole_chunks<T>(all, {all.x, all.z, rows_of<const T>(args.out)});
    launch("gated_norm", normalise<T, order>, grid_of(all, all.rows, 4), stream, all);
  });
}

void gated_norm_backward(const GatedNormBackwardArgs& args, Stream& stream) {
  const Tensor partials = gated_norm_backward_scratch(args, stream);
  const NormBlocks blocks(args.x.size(0));
  for_gated("gated_norm_backward", args.x.dtype(), args.order, [&](auto type, auto order) {
    using T = decltype(type);
    if (args.x.elements() == 0) return;
    GatedRows<T> all = gated_rows<T>(args);
    all.dout = rows_of<const T>(args.dout);
    all.out = rows_of<T>(args.dx);
    all.dz = rows_of<T>(args.dz);
    all.dweights = address_of<float>(partials);
    all.height = static_cast<int>(blocks.height);
    all.whole = whole_chunks<T>(
        all, {all.x, all.z, all.dout, rows_of<const T>(args.dx), rows_of<const T>(args.dz)});
    launch("gated_norm_backward", differentiate<T, order>, grid_of(all, blocks.count, 2), stream,
           all);
  });
  if (partials.defined()) add_partial_rows(partials, args.dweight, stream);
}

}  // namespace megatron::kernels::cuda
