#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/wide.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

struct Dim {
  int64_t size, from, to;  // elements; strides of x and of out
};

// Most elements in one launch; their indices are divided as 32-bit numbers.
constexpr int64_t kMax = int64_t{1} << 31;

// Dimensions of a copy, the innermost last.
struct Layout {
  Dim dims[kMaxRank];
  int rank;

  int64_t elements() const {
    int64_t product = 1;
    for (int d = 0; d < rank; ++d) product *= dims[d].size;
    return product;
  }
  // Adds the offsets of an item to `from` and `to`. index numbers the items of all but the last
  // `without` dimensions.
  __device__ void locate(unsigned index, int64_t& from, int64_t& to, int without) const {
    for (int d = rank - without - 1; d >= 0; --d) {
      const unsigned size = static_cast<unsigned>(dims[d].size), rest = d == 0 ? 0 : index / size;
      const int64_t i = index - rest * size;
      from += i * dims[d].from;
      to += i * dims[d].to;
      index = rest;
    }
  }
};

// Dimensions ordered by out's strides. Drops those of size 1 and merges adjacent ones if both
// tensors allow it.
Layout layout_of(const Tensor& x, const Tensor& out) {
  Layout all{}, layout{};
  for (int d = 0; d < x.rank(); ++d)
    if (x.size(d) != 1) all.dims[all.rank++] = {x.size(d), x.stride(d), out.stride(d)};
  std::stable_sort(all.dims, all.dims + all.rank,
                   [](const Dim& a, const Dim& b) { return std::abs(a.to) > std::abs(b.to); });
  for (int d = 0; d < all.rank; ++d) {
    const Dim& dim = all.dims[d];
    Dim* last = layout.rank > 0 ? &layout.dims[layout.rank - 1] : nullptr;
    if (last != nullptr && last->from == dim.size * dim.from && last->to == dim.size * dim.to) {
      *last = {last->size * dim.size, dim.from, dim.to};
    } else {
      layout.dims[layout.rank++] = dim;
    }
  }
  if (layout.rank == 0) layout.dims[layout.rank++] = {1, 1, 1};
  return layout;
}

// bf16 and f16 are converted through f32.
template <class To, class From>
__device__ To converted(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<From, double>) {
    return from_float<To>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, double>) {
    return static_cast<double>(to_float(x));
  } else {
    return from_float<To>(to_float(x));
  }
}

// Copies N adjacent elements of the innermost dimension at a time. If N > 1, that dimension is
// contiguous in both tensors and every vector is aligned; only one-dimensional copies may end with
// fewer than N elements.
template <class From, class To, int N>
__global__ void __launch_bounds__(kThreads)
    copy_runs(const From* x, To* out, Layout layout, unsigned items) {
  constexpr int kUnroll = 4, kFromPiece = kPiece<From, N>, kToPiece = kPiece<To, N>;
  const Dim inner = layout.dims[layout.rank - 1];
  const unsigned row_items = static_cast<unsigned>((inner.size + N - 1) / N);
  From values[kUnroll][N];
  int64_t places[kUnroll];
  int counts[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const unsigned item = (blockIdx.x * kUnroll + u) * kThreads + threadIdx.x;
    counts[u] = 0;
    if (item >= items) continue;
    const unsigned row = layout.rank == 1 ? 0 : item / row_items;
    const int64_t column = int64_t{item - row * row_items} * N;
    int64_t from = column * inner.from;
    places[u] = column * inner.to;
    layout.locate(row, from, places[u], 1);
    counts[u] = left<N>(inner.size - column);
    if (counts[u] == N) {
#pragma unroll
      for (int piece = 0; piece < N; piece += kFromPiece) {
        const auto v = load_vector<From, kFromPiece>(x + from + piece);
#pragma unroll
        for (int k = 0; k < kFromPiece; ++k) values[u][piece + k] = v.at[k];
      }
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (k < counts[u]) values[u][k] = x[from + k];
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (counts[u] == N) {
#pragma unroll
      for (int piece = 0; piece < N; piece += kToPiece) {
        Vector<To, kToPiece> v;
#pragma unroll
        for (int k = 0; k < kToPiece; ++k) v.at[k] = converted<To>(values[u][piece + k]);
        store_vector(out + places[u] + piece, v);
      }
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (k < counts[u]) out[places[u] + k] = converted<To>(values[u][k]);
    }
  }
}

template <class To>
inline constexpr int kSide = sizeof(To) < 4 ? 64 : 32;

// The last two dimensions are rows (the smallest stride of x) and columns (the smallest stride of
// out). Each block copies a square of them through shared memory, reading along the rows' dimension
// and writing along the columns'.
template <class From, class To>
__global__ void __launch_bounds__(kThreads)
    copy_squares(const From* x, To* out, Layout layout, unsigned row_squares,
                 unsigned column_squares) {
  constexpr int kAcross = kSide<To>, kEach = kAcross * kAcross / kThreads;
  constexpr int kPad = sizeof(To) < 4 ? 4 / static_cast<int>(sizeof(To)) : 1;
  __shared__ To square[kAcross][kAcross + kPad];
  const Dim row = layout.dims[layout.rank - 2], column = layout.dims[layout.rank - 1];
  unsigned index = blockIdx.x;
  const int64_t first_column = int64_t{index % column_squares} * kAcross;
  index /= column_squares;
  const int64_t first_row = int64_t{index % row_squares} * kAcross;
  int64_t from = first_row * row.from + first_column * column.from;
  int64_t to = first_row * row.to + first_column * column.to;
  layout.locate(index / row_squares, from, to, 2);
  const int rows = left<kAcross>(row.size - first_row);
  const int columns = left<kAcross>(column.size - first_column);
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const int i = u * kThreads + static_cast<int>(threadIdx.x), r = i % kAcross, c = i / kAcross;
    if (r < rows && c < columns)
      square[c][r] = converted<To>(x[from + r * row.from + c * column.from]);
  }
  __syncthreads();
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const int i = u * kThreads + static_cast<int>(threadIdx.x), c = i % kAcross, r = i / kAcross;
    if (r < rows && c < columns) out[to + r * row.to + c * column.to] = square[c][r];
  }
}

// Moves the dimension with x's smallest stride to the last position but one. Returns false if
// copying squares gains nothing.
bool arrange_squares(Layout& layout) {
  constexpr int64_t kMin = 8;  // minimum number of elements along either side
  const Dim column = layout.dims[layout.rank - 1];
  if (layout.rank < 2 || column.size < kMin) return false;
  int chosen = 0;
  for (int d = 1; d < layout.rank; ++d)
    if (std::abs(layout.dims[d].from) < std::abs(layout.dims[chosen].from)) chosen = d;
  const Dim row = layout.dims[chosen];
  if (chosen == layout.rank - 1 || row.from == 0 || row.size < kMin) return false;
  std::rotate(layout.dims + chosen, layout.dims + chosen + 1, layout.dims + layout.rank - 1);
  return true;
}

template <class From, class To, int N>
bool vectors_fit(const Layout& layout, const From* x, const To* out) {
  const Dim& inner = layout.dims[layout.rank - 1];
  if (inner.from != 1 || inner.to != 1 || !aligned<N>(x) || !aligned<N>(out)) return false;
  if (layout.rank > 1 && inner.size % N != 0) return false;
  return std::all_of(layout.dims, layout.dims + layout.rank - 1,
                     [](const Dim& dim) { return dim.from % N == 0 && dim.to % N == 0; });
}

template <class From, class To, int N>
void run_runs(const From* x, To* out, const Layout& layout, Stream& stream) {
  constexpr int kUnroll = 4;
  const int64_t width = layout.dims[layout.rank - 1].size;
  const int64_t items = layout.elements() / width * ceil_div(width, N);
  launch("copy", copy_runs<From, To, N>,
         Grid{dim3(static_cast<unsigned>(ceil_div(items, kThreads * kUnroll)))}, stream, x, out,
         layout, static_cast<unsigned>(items));
}

template <class From, class To>
void copy_elements(const From* x, To* out, Layout layout, Stream& stream) {
  if (!arrange_squares(layout)) return run_runs<From, To, 1>(x, out, layout, stream);
  const int64_t height = layout.dims[layout.rank - 2].size;
  const int64_t width = layout.dims[layout.rank - 1].size;
  const int64_t rows = ceil_div(height, kSide<To>), columns = ceil_div(width, kSide<To>);
  const int64_t squares = layout.elements() / (height * width) * rows * columns;
  launch("copy", copy_squares<From, To>, Grid{dim3(static_cast<unsigned>(squares))}, stream, x, out,
         layout, static_cast<unsigned>(rows), static_cast<unsigned>(columns));
}

// Converts the layout to units of `units` elements each. Returns false if the elements cannot be
// grouped into units.
bool make_units(Layout& layout, int64_t units) {
  Dim& inner = layout.dims[layout.rank - 1];
  if (inner.from != 1 || inner.to != 1 || inner.size % units != 0) return false;
  for (int d = 0; d < layout.rank - 1; ++d) {
    Dim& dim = layout.dims[d];
    if (dim.from % units != 0 || dim.to % units != 0) return false;
    dim = {dim.size, dim.from / units, dim.to / units};
  }
  inner.size /= units;
  return true;
}

// Copies elements of one type in wider units. Returns false if they cannot be grouped into units.
template <class Unit, class T>
bool copy_units(const T* x, T* out, Layout layout, Stream& stream) {
  if constexpr (sizeof(Unit) <= sizeof(T)) {
    return false;
  } else {
    const auto* from = reinterpret_cast<const Unit*>(x);
    auto* to = reinterpret_cast<Unit*>(out);
    if (!aligned<1>(from) || !aligned<1>(to)) return false;
    if (!make_units(layout, static_cast<int64_t>(sizeof(Unit) / sizeof(T)))) return false;
    run_runs<Unit, Unit, 1>(from, to, layout, stream);
    return true;
  }
}

template <class From, class To>
void copy_typed(const From* x, To* out, Layout layout, Stream& stream) {
  if (layout.elements() > kMax) {
    // Multiple of elements that keeps the second half as aligned as the first.
    constexpr int64_t kWhole = 16;
    const auto longest =
        std::max_element(layout.dims, layout.dims + layout.rank,
                         [](const Dim& a, const Dim& b) { return a.size < b.size; });
    Dim& dim = *longest;
    Layout second = layout;
    const int64_t size =
        dim.size > 2 * kWhole ? ceil_div(dim.size, 2 * kWhole) * kWhole : dim.size / 2;
    second.dims[longest - layout.dims].size -= size;
    dim.size = size;
    copy_typed(x, out, layout, stream);
    return copy_typed(x + size * dim.from, out + size * dim.to, second, stream);
  }
  if constexpr (std::is_same_v<From, To>) {
    using Widest = Vector<uint32_t, 4>;
    if (copy_units<Widest>(x, out, layout, stream) || copy_units<uint64_t>(x, out, layout, stream))
      return;
    if (copy_units<uint32_t>(x, out, layout, stream)) return;
    if (copy_units<uint16_t>(x, out, layout, stream)) return;
  } else {
    constexpr int kVector = kNeighbours<From, To>;
    if (vectors_fit<From, To, kVector>(layout, x, out))
      return run_runs<From, To, kVector>(x, out, layout, stream);
  }
  copy_elements(x, out, layout, stream);
}

template <class From, class To>
void run(const CopyArgs& args, Stream& stream) {
  copy_typed(static_cast<const From*>(args.x.address()), static_cast<To*>(args.out.address()),
             layout_of(args.x, args.out), stream);
}

}  // namespace

void copy(const CopyArgs& args, Stream& stream) {
  if (args.x.elements() == 0) return;
  if (args.x.dtype() == args.out.dtype()) {  // copies bits
    switch (size_of(args.x.dtype())) {
      case 1: return run<uint8_t, uint8_t>(args, stream);
      case 2: return run<uint16_t, uint16_t>(args, stream);
      case 4: return run<uint32_t, uint32_t>(args, stream);
      default: return run<uint64_t, uint64_t>(args, stream);
    }
  }
  for_floating_type("copy", args.x.dtype(), [&](auto from) {
    for_floating_type("copy", args.out.dtype(), [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      if constexpr (!std::is_same_v<From, To>) run<From, To>(args, stream);
    });
  });
}

}  // namespace megatron::kernels::cuda
