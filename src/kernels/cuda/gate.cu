#include "kernels/cuda/exponential.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/row_chunks.h"

namespace megatron::kernels::cuda {
namespace {

__device__ float sigmoid(float x) { return reciprocal_approx(1.0f + exp_approx(-x)); }

template <class T>
__global__ void __launch_bounds__(kThreads)
    gate_rows(RowChunks all, StridedRows<T> x, StridedRows<T> gate, StridedRows<T> out) {
  const ChunkOfRow<T> at(all);
  const Vector<T, kChunk<T>> gates = at.load(gate);
  Vector<T, kChunk<T>> values = at.load(x);
#pragma unroll
  for (int k = 0; k < kChunk<T>; ++k)
    values.at[k] = from_float<T>(to_float(values.at[k]) * sigmoid(to_float(gates.at[k])));
  at.store(out, values);
}

template <class T>
struct GateRowsBackward {
  StridedRows<T> x, gate, dout, dx, dgate;
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    gate_rows_backward(RowChunks all, GateRowsBackward<T> rows) {
  const ChunkOfRow<T> at(all);
  const Vector<T, kChunk<T>> values = at.load(rows.x);
  Vector<T, kChunk<T>> gates = at.load(rows.gate), gradient = at.load(rows.dout);
#pragma unroll
  for (int k = 0; k < kChunk<T>; ++k) {
    const float s = sigmoid(to_float(gates.at[k])), dx = to_float(gradient.at[k]) * s;
    gradient.at[k] = from_float<T>(dx);
    gates.at[k] = from_float<T>(dx * to_float(values.at[k]) * (1.0f - s));
  }
  at.store(rows.dx, gradient);
  at.store(rows.dgate, gates);
}

}  // namespace

void gate(const GateArgs& args, Stream& stream) {
  check(args);
  if (args.x.elements() == 0) return;
  for_storage_type("gate", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const StridedRows<T> x(args.x), gate(args.gate), out(args.out);
    const RowChunks all = RowChunks::of<T>("gate", args.x, {x, gate, out});
    launch("gate", gate_rows<T>, grid_for(all.items), stream, all, x, gate, out);
  });
}

void gate_backward(const GateBackwardArgs& args, Stream& stream) {
  check(args);
  if (args.x.elements() == 0) return;
  for_storage_type("gate_backward", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const GateRowsBackward<T> rows{StridedRows<T>(args.x), StridedRows<T>(args.gate),
                                   StridedRows<T>(args.dout), StridedRows<T>(args.dx),
                                   StridedRows<T>(args.dgate)};
    const RowChunks all = RowChunks::of<T>("gate_backward", args.x,
                                           {rows.x, rows.gate, rows.dout, rows.dx, rows.dgate});
    launch("gate_backward", gate_rows_backward<T>, grid_for(all.items), stream, all, rows);
  });
}

}  // namespace megatron::kernels::cuda
