// Tensors as dense vectors of the compute type C (float or double).
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "device/stream.h"
#include "kernels/elements.h"
#include "tensor/tensor.h"

namespace megatron::kernels::reference {

// Row-major elements of a tensor of any floating type and any strides; an undefined tensor gives an
// empty vector.
template <class C>
std::vector<C> load(const Tensor& tensor);
// The reverse of load: rounds once to the tensor's type.
template <class C>
void store(const Tensor& tensor, const std::vector<C>& values);
// Stores sums + beta * out, rounded once. Does nothing if out is undefined.
template <class C>
void store_sum(const Accumulate& to, std::vector<C> sums) {
  if (!to.out.defined()) return;
  const std::vector<C> before = to.beta == 0 ? std::vector<C>() : load<C>(to.out);
  for (size_t i = 0; i < before.size(); ++i) sums[i] += before[i];
  store(to.out, sums);
}

// The factor of a product whose operands have been multiplied by these scales, if defined.
template <class C>
C product_factor(const Tensor& a_scale, const Tensor& b_scale) {
  const auto inverse = [](const Tensor& scale) {
    return scale.defined() ? 1 / static_cast<C>(*scale.data<float>()) : C{1};
  };
  return inverse(a_scale) * inverse(b_scale);
}

std::vector<int64_t> load_integers(const Tensor& tensor);
void store_integers(const Tensor& tensor, const std::vector<int64_t>& values);

// Value of a 0-d f64 tensor.
inline double scalar(const Tensor& tensor) { return *tensor.data<double>(); }

// Calls f(row) for each row, in fixed blocks over the stream's threads.
void for_rows(Stream& stream, int64_t rows, int64_t rows_per_block,
              FunctionRef<void(int64_t row)> f);

template <class C, class Args, class F>
void for_each_element(const Args& args, F formula) {
  constexpr auto& elements = Args::kElements;
  constexpr size_t kInputs = elements.inputs(), kOutputs = elements.outputs();
  std::array<std::vector<C>, kInputs> in;
  std::array<std::vector<C>, kOutputs> out;
  for (size_t k = 0; k < kInputs; ++k) in[k] = load<C>(args.*elements.list[k].tensor);
  for (std::vector<C>& values : out) values.resize(in[0].size());
  for (size_t i = 0; i < in[0].size(); ++i) {
    const std::array<C, kOutputs> values = [&]<size_t... k>(std::index_sequence<k...>) {
      return std::array<C, kOutputs>{formula(in[k][i]...)};
    }(std::make_index_sequence<kInputs>());
    for (size_t k = 0; k < kOutputs; ++k) out[k][i] = values[k];
  }
  for (size_t k = 0; k < kOutputs; ++k) {
    const Tensor& t = args.*elements.list[kInputs + k].tensor;
    if (t.defined()) store(t, out[k]);
  }
}

// Checks an element-wise kernel's arguments, and sets its outputs to formula(C of each input),
// which returns a C or a std::array of them. C is double for f64, else float.
template <class Args, class F>
void for_each_element(const Args& args, F formula) {
  check(args);
  const Tensor& first = args.*Args::kElements.list[Args::kElements.of_type()].tensor;
  first.dtype() == DType::f64 ? for_each_element<double>(args, formula)
                              : for_each_element<float>(args, formula);
}

}  // namespace megatron::kernels::reference
