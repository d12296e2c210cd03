// Host side of tensor_rows.h, which nvcc does not compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace megatron::kernels::cuda {

// Fills a table of together_bytes(): first the rows, then the ends.
void upload_rows(const Tensor& table, std::span<const std::byte> rows,
                 std::span<const int64_t> ends);

}  // namespace megatron::kernels::cuda
