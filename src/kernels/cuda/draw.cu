#include <array>
#include <bit>

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/philox.h"
#include "kernels/draw_terms.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

struct Draws {
  uint64_t seed, stream;
  double scale;
  bool normal;
};

// Draws 2i and 2i + 1.
struct VectorPair {
  double at[2];
};

__device__ double uniform(uint32_t low, uint32_t high) {
  return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
}

// Explicitly rounded operations that the compiler cannot fuse.
__device__ double plus(double a, double b) { return __dadd_rn(a, b); }
__device__ double times(double a, double b) { return __dmul_rn(a, b); }

template <size_t N>
__device__ double horner(const std::array<double, N>& terms, double x) {
  double sum = terms[0];
#pragma unroll
  for (size_t i = 1; i < N; ++i) sum = plus(times(sum, x), terms[i]);
  return sum;
}

__device__ double log_of(double x) {
  constexpr auto kTerms = kLogTerms;
  const auto bits = std::bit_cast<int64_t>(x);
  const int64_t exponent = (bits - kRootHalfBits) >> 52;
  const auto m = std::bit_cast<double>(bits - exponent * (int64_t{1} << 52));
  const auto e = static_cast<double>(exponent);
  const double s = plus(m, -1.0) / plus(m, 1.0), t = plus(s, s), z = times(s, s);
  const double rest = plus(times(times(t, z), horner(kTerms, z)), times(e, kLn2Low));
  return plus(times(e, kLn2High), plus(t, rest));
}

// Cosine and sine of 2 pi v.
__device__ VectorPair turned(double v) {
  constexpr auto kSin = kSinTerms;
  constexpr auto kCos = kCosTerms;
  const double q = floor(plus(times(v, 4.0), 0.5)), r = plus(v, -times(q, 0.25));
  const double a = times(r, kTwoPi), y = times(a, a);
  const double sine = plus(a, times(a, times(y, horner(kSin, y))));
  const double cosine = plus(plus(1.0, -times(y, 0.5)), times(y, times(y, horner(kCos, y))));
  switch (static_cast<int>(q)) {
    case 1: return {{-sine, cosine}};
    case 2: return {{-cosine, -sine}};
    case 3: return {{sine, -cosine}};
    default: return {{cosine, sine}};
  }
}

__device__ VectorPair values_of(const Draws& draws, uint64_t pair) {
  const PhiloxWords words =
      philox({{static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32),
               static_cast<uint32_t>(draws.stream), static_cast<uint32_t>(draws.stream >> 32)}},
             draws.seed);
  const double u = uniform(words.at[0], words.at[1]), v = uniform(words.at[2], words.at[3]);
  const auto scaled = [&](double a, double b) {
    return VectorPair{{times(draws.scale, a), times(draws.scale, b)}};
  };
  if (!draws.normal) return scaled(plus(plus(u, u), -1.0), plus(plus(v, v), -1.0));
  const double radius = sqrt(times(-2.0, log_of(plus(1.0, -u))));
  const VectorPair direction = turned(v);
  return scaled(times(radius, direction.at[0]), times(radius, direction.at[1]));
}

template <class T>
struct Rows {
  T* out;
  int64_t columns, stride, first, step;
  int64_t pairs, items;  // pairs: pairs of draws that a row may contain; items: pairs of all rows
};

template <class T>
__global__ void __launch_bounds__(kThreads) draw_pairs(Rows<T> rows, Draws draws) {
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= rows.items) return;
  const int64_t row = item / rows.pairs, first = rows.first + row * rows.step;
  const int64_t pair = first / 2 + (item - row * rows.pairs);
  const VectorPair drawn = values_of(draws, static_cast<uint64_t>(pair));
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int64_t column = 2 * pair + k - first;
    if (column < 0 || column >= rows.columns) continue;
    rows.out[row * rows.stride + column] = from_float<T>(static_cast<float>(drawn.at[k]));
  }
}

}  // namespace

void draw(const DrawArgs& args, Stream& stream) {
  if (args.out.elements() == 0) return;
  const Draws draws{args.seed, args.stream, args.scale, args.kind == DrawArgs::Kind::normal};
  for_storage_type("draw", args.out.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t columns = args.out.size(1), pairs = columns / 2 + 1;
    const Rows<T> rows{.out = address_of<T>(args.out),
                       .columns = columns,
                       .stride = args.out.stride(0),
                       .first = args.first,
                       .step = args.step,
                       .pairs = pairs,
                       .items = args.out.size(0) * pairs};
    launch("draw", draw_pairs<T>, grid_for(rows.items), stream, rows, draws);
  });
}

}  // namespace megatron::kernels::cuda
