// Loops of element-wise CUDA kernels, which apply a formula (kernels/formulas-inl.h) to contiguous
// tensors or to rows [T,N] with a stride.
#pragma once

#include <utility>

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/divisor.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/lanes.h"
#include "kernels/element_forms.h"

namespace megatron::kernels::cuda {

// Calls loops with the formula. A formula that is selected by an argument (activation.cu) overloads
// this to select it once, outside of the loops.
template <class F, class Loops>
__device__ void with_formula(const F& formula, Loops loops) {
  loops(formula);
}

// Applies a formula to the tensors of one call, as a Body of over_elements and over_rows. Operands
// are the inputs, then the outputs.
template <class Form, class F>
class FormulaBody {
 public:
  static constexpr size_t kOperands = Form::kInputs + Form::kOutputs;

 private:
  using Inputs = std::make_index_sequence<Form::kInputs>;
  using All = std::make_index_sequence<kOperands>;

  template <size_t... k>
  static constexpr int neighbours(std::index_sequence<k...>) {
    return kNeighbours<Stored<Form, k>...>;
  }

 public:
  static constexpr int kCount = neighbours(All());
  static constexpr int kUnroll = std::max(2, 16 / kCount / static_cast<int>(Form::kInputs));
  using Factors = NoFactors;
  struct Values {
    float x[Form::kInputs][kCount];
  };

  F formula;
  void* operands[kOperands] = {};
  int64_t strides[kOperands] = {};  // row strides in elements

  // True if rows begin at addresses where kCount adjacent elements can be read and written at once.
  bool vectors() const { return in_vectors(All()); }

  __device__ void prepare(Factors&) const {}
  __device__ void read(const Span& span, Values& v, int64_t row = 0) const {
    read_all(span, v, row, Inputs());
  }
  __device__ void write(const Span& span, const Factors&, Values& v) const {
    write_values(formula, span, v, 0);
  }
  // Computes and writes values with the formula or, if it is selected by an argument, the selected
  // one (with_formula).
  template <class Part>
  __device__ void write_values(const Part& part, const Span& span, const Values& v,
                               int64_t row) const {
    float out[Form::kOutputs][kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) put(out, j, value(part, v, j, Inputs()));
    write_all(span, out, row, std::make_index_sequence<Form::kOutputs>());
  }

 private:
  template <size_t operand>
  __device__ Stored<Form, operand>* place(int64_t row) const {
    return static_cast<Stored<Form, operand>*>(operands[operand]) + row * strides[operand];
  }
  template <size_t... k>
  bool in_vectors(std::index_sequence<k...>) const {
    return ((aligned<kCount>(static_cast<const Stored<Form, k>*>(operands[k])) &&
             strides[k] % kCount == 0) &&
            ...);
  }
  template <size_t... k>
  __device__ void read_all(const Span& span, Values& v, int64_t row,
                           std::index_sequence<k...>) const {
    (cuda::read(place<k>(row), span, v.x[k]), ...);
  }
  template <class Part, size_t... k>
  __device__ static auto value(const Part& part, const Values& v, int j,
                               std::index_sequence<k...>) {
    return part(v.x[k][j]...);
  }
  __device__ static void put(float (&out)[1][kCount], int j, float value) { out[0][j] = value; }
  __device__ static void put(float (&out)[2][kCount], int j, const Pair<float>& values) {
    out[0][j] = values.first;
    out[1][j] = values.second;
  }
  template <size_t... k>
  __device__ void write_all(const Span& span, const float (&out)[Form::kOutputs][kCount],
                            int64_t row, std::index_sequence<k...>) const {
    (write_one<Form::kInputs + k>(span, out[k], row), ...);
  }
  template <size_t operand>
  __device__ void write_one(const Span& span, const float (&out)[kCount], int64_t row) const {
    if (Form::template kOptional<operand> && operands[operand] == nullptr) return;
    cuda::write(place<operand>(row), span, out);
  }
};

// All rows in chunks of kCount adjacent elements. A thread reads kTogether chunks before it
// computes.
struct FormulaRows {
  int64_t width;
  uint32_t items;
  Divisor chunks;  // chunks per row
  bool vectors;
};
template <int kTogether, class Body>
__global__ void __launch_bounds__(kThreads) over_rows(FormulaRows all, Body body) {
  typename Body::Values values[kTogether];
  Span spans[kTogether];
  uint32_t rows[kTogether];
#pragma unroll
  for (int u = 0; u < kTogether; ++u) {
    const uint32_t item = (blockIdx.x * kTogether + u) * kThreads + threadIdx.x;
    rows[u] = all.chunks.quotient(item);
    Span& span = spans[u];
    span.first = static_cast<int64_t>(item - rows[u] * all.chunks.value()) * Body::kCount;
    span.count = item < all.items ? left<Body::kCount>(all.width - span.first) : 0;
    span.vector = all.vectors && span.count == Body::kCount;
    body.read(span, values[u], rows[u]);
  }
  with_formula(body.formula, [&](const auto& formula) {
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (spans[u].count > 0) body.write_values(formula, spans[u], values[u], rows[u]);
  });
}

// Launches the body for rows of `width` elements. Throws Error naming the kernel if there are too
// many chunks.
template <int kTogether, class Body>
void run_over_rows(const char* kernel, int64_t rows, int64_t width, const Body& body,
                   Stream& stream) {
  if (rows == 0 || width == 0) return;
  const int64_t chunks = ceil_div(width, int64_t{Body::kCount});
  const uint32_t items = count_items(kernel, rows * chunks);
  const FormulaRows all{width, items, Divisor(static_cast<uint32_t>(chunks)), body.vectors()};
  launch(kernel, over_rows<kTogether, Body>, grid_for(ceil_div(items, kTogether)), stream, all,
         body);
}

}  // namespace megatron::kernels::cuda
