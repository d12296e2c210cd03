// Transposed copies of parts of tensors, in vectors.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/blocks.h"

namespace megatron::kernels::cpu {

// out[r out_stride + c] = x[columns[c] + r] for r < rows. Of one type: the very bits.
void transpose(const float* x, std::span<const int64_t> columns, int64_t rows, Output<float> out,
               int64_t out_stride);
void transpose(const uint16_t* x, std::span<const int64_t> columns, int64_t rows,
               Output<uint16_t> out, int64_t out_stride);
void transpose(const float* x, std::span<const int64_t> columns, int64_t rows, Output<bf16> out,
               int64_t out_stride);
void transpose(const bf16* x, std::span<const int64_t> columns, int64_t rows, Output<float> out,
               int64_t out_stride);

}  // namespace megatron::kernels::cpu
