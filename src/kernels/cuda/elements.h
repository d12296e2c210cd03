// Element-wise work on contiguous tensors. Each thread takes a few adjacent elements at a time, in
// accesses of up to 16 bytes if all addresses are aligned, else one by one. The arithmetic is the
// same in both cases.
#pragma once

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.h"

namespace megatron::kernels::cuda {

// Number of adjacent elements that fill one 16-byte access of the widest of these types.
template <class... Types>
inline constexpr int kNeighbours = kVectorBytes / static_cast<int>(std::max({sizeof(Types)...}));

// Number of elements in one access if a thread takes N.
template <class T, int N>
inline constexpr int kPiece = std::min(N, kVectorBytes / static_cast<int>(sizeof(T)));

// True if N adjacent elements can be read or written as vectors from an address on; also true for
// null.
template <int N, class T>
bool aligned(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % (sizeof(T) * static_cast<size_t>(kPiece<T, N>)) == 0;
}

// Up to N adjacent elements: `count` of them, from element `first` on. vector: all N exist and can
// be accessed as vectors.
struct Span {
  int64_t first;
  int count;
  bool vector;
};

// Number of elements that remain for this thread, at most N.
template <int N>
__device__ int left(int64_t elements) {
  return elements < N ? (elements > 0 ? static_cast<int>(elements) : 0) : N;
}

// Reads a span; elements beyond its end become 0.
template <int N, class T>
__device__ void read(const T* p, const Span& span, float (&x)[N]) {
  if (span.vector) {
    constexpr int kSize = kPiece<T, N>;
#pragma unroll
    for (int piece = 0; piece < N; piece += kSize) {
      const auto v = load_vector<T, kSize>(p + span.first + piece);
#pragma unroll
      for (int k = 0; k < kSize; ++k) x[piece + k] = to_float(v.at[k]);
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = k < span.count ? to_float(p[span.first + k]) : 0.0f;
  }
}

template <int N, class T>
__device__ void write(T* p, const Span& span, const float (&x)[N]) {
  if (span.vector) {
    constexpr int kSize = kPiece<T, N>;
#pragma unroll
    for (int piece = 0; piece < N; piece += kSize) {
      Vector<T, kSize> v;
#pragma unroll
      for (int k = 0; k < kSize; ++k) v.at[k] = from_float<T>(x[piece + k]);
      store_vector(p + span.first + piece, v);
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (k < span.count) p[span.first + k] = from_float<T>(x[k]);
  }
}

// A Body has
//   kCount    adjacent elements that a thread takes at a time
//   kUnroll   how many times a thread reads before it writes
//   Factors   values shared by all elements; every thread of the block calls prepare(Factors&),
//             which fills them in shared memory
//   Values    what a thread reads: read(span, Values&), then write(span, const Factors&, Values&)
template <class Body>
__global__ void __launch_bounds__(kThreads) over_elements(int64_t n, bool vectors, Body body) {
  constexpr int kStride = kThreads * Body::kCount;
  __shared__ typename Body::Factors shared;
  body.prepare(shared);
  __syncthreads();
  const typename Body::Factors factors = shared;
  const int64_t step = int64_t{gridDim.x} * kStride * Body::kUnroll;
  for (int64_t begin = int64_t{blockIdx.x} * kStride * Body::kUnroll; begin < n; begin += step) {
    typename Body::Values values[Body::kUnroll];
    Span spans[Body::kUnroll];
#pragma unroll
    for (int u = 0; u < Body::kUnroll; ++u) {
      Span& span = spans[u];
      span.first = begin + u * kStride + int64_t{threadIdx.x} * Body::kCount;
      span.count = left<Body::kCount>(n - span.first);
      span.vector = vectors && span.count == Body::kCount;
      if (span.count > 0) body.read(span, values[u]);
    }
#pragma unroll
    for (int u = 0; u < Body::kUnroll; ++u)
      if (spans[u].count > 0) body.write(spans[u], factors, values[u]);
  }
}

// Factors of bodies that need none.
struct NoFactors {};

// Limit on the number of blocks, a few for every multiprocessor, since each calls prepare() once.
inline constexpr int64_t kMaxElementBlocks = 132 * 32;

// Launches the body for n elements. vectors: all its tensors are aligned.
template <class Body>
void run_over_elements(const char* name, int64_t n, bool vectors, const Body& body,
                       Stream& stream) {
  if (n == 0) return;
  const int64_t blocks = ceil_div(n, int64_t{kThreads} * Body::kCount * Body::kUnroll);
  const Grid grid{dim3(static_cast<unsigned>(std::min(blocks, kMaxElementBlocks)))};
  launch(name, over_elements<Body>, grid, stream, n, vectors, body);
}

}  // namespace megatron::kernels::cuda
