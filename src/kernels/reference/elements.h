// Tensors as dense vectors of the compute type C (float or double).
#pragma once

#include <cstdint>
#include <vector>

#include "base/function_ref.h"
#include "device/stream.h"
#include "tensor/tensor.h"

namespace megatron::kernels::reference {

// Row-major elements of a tensor of any floating type and any strides; an undefined tensor gives an
// empty vector.
template <class C>
std::vector<C> load(const Tensor& tensor);
// The reverse: rounds once to the tensor's type.
template <class C>
void store(const Tensor& tensor, const std::vector<C>& values);
std::vector<int64_t> load_integers(const Tensor& tensor);
void store_integers(const Tensor& tensor, const std::vector<int64_t>& values);

// The one value of a 0-d f64 tensor.
inline double scalar(const Tensor& tensor) { return *tensor.data<double>(); }

// Calls f(row) for each row, in fixed blocks over the stream's threads.
void for_rows(Stream& stream, int64_t rows, int64_t rows_per_block,
              FunctionRef<void(int64_t row)> f);

}  // namespace megatron::kernels::reference
