// Gathers rows of a table.
#pragma once

#include <type_traits>

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"

namespace megatron::kernels::cuda {

// Units (of sizeof(Unit) bytes) that each lane of a warp copies.
inline constexpr int kGatheredAtOnce = 4;

// keeps: rows of out without a row of the table stay as they are.
template <class Unit, class Pick>
__global__ void __launch_bounds__(kThreads)
    gather(Pick pick, int64_t rows, const Unit* table, Unit* out, int64_t width, int64_t slabs,
           bool keeps) {
  const int lane = threadIdx.x % kWarp;
  const int64_t item = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int64_t to = item / slabs;
  if (to >= rows) return;
  const int64_t row = pick.row(to), begin = (item - to * slabs) * kWarp * kGatheredAtOnce + lane;
  if (row < 0 && keeps) return;
  Unit units[kGatheredAtOnce];
#pragma unroll
  for (int u = 0; u < kGatheredAtOnce; ++u) {
    const int64_t i = begin + u * kWarp;
    units[u] = row >= 0 && i < width ? table[row * width + i] : Unit{};
  }
#pragma unroll
  for (int u = 0; u < kGatheredAtOnce; ++u) {
    const int64_t i = begin + u * kWarp;
    if (i < width) out[to * width + i] = units[u];
  }
}

template <class Unit, class Pick>
void gather_units(const char* name, const Pick& pick, int64_t rows, const Tensor& table,
                  const Tensor& out, bool keeps, Stream& stream) {
  const int64_t bytes = table.size(1) * size_of(table.dtype());
  const int64_t width = bytes / static_cast<int64_t>(sizeof(Unit));
  const int64_t slabs = ceil_div(width, kGatheredAtOnce * kWarp);
  if (rows == 0 || width == 0) return;
  const Grid grid{dim3(static_cast<unsigned>(ceil_div(rows * slabs, kThreads / kWarp)))};
  launch(name, gather<Unit, Pick>, grid, stream, pick, rows, address_of<Unit>(table),
         address_of<Unit>(out), width, slabs, keeps);
}

// out[i,:] = table[pick.row(i),:] for i < rows; zeros, or with `keeps` what it was, if pick.row(i)
// is negative. Both tensors are contiguous and of one type.
template <class Pick>
void gather_rows(const char* name, const Pick& pick, int64_t rows, const Tensor& table,
                 const Tensor& out, Stream& stream, bool keeps = false) {
  const int64_t size = size_of(table.dtype());
  if (table.size(1) * size % kVectorBytes == 0 && are_aligned({table.address(), out.address()}))
    return gather_units<Vector<uint32_t, 4>>(name, pick, rows, table, out, keeps, stream);
  if (size == 2) return gather_units<uint16_t>(name, pick, rows, table, out, keeps, stream);
  if (size == 4) return gather_units<uint32_t>(name, pick, rows, table, out, keeps, stream);
  gather_units<uint64_t>(name, pick, rows, table, out, keeps, stream);
}

}  // namespace megatron::kernels::cuda
