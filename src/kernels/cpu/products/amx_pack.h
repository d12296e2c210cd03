// Packs bf16 matrices for AMX tiles, with AVX-512.
#pragma once

#include <cstdint>

#include "kernels/cpu/products/panels.h"

namespace megatron::kernels::cpu {

// Words of a strip per step: two tiles of 16 rows of 16 words, one after the other.
inline constexpr int64_t kAmxStepWords = 2 * 16 * 16;

// The strip form of up to 32 rows: word l of row i at out[l / 16 * kAmxStepWords + i * 16 + l %
// 16]. An odd last element is paired with 0; other words beyond the row's end are undefined.
void rows_to_tiles(const MatrixRows& from, int64_t rows, int64_t elements, uint32_t* out);

// The same for up to 32 columns of a matrix of `rows` rows, which are the elements of the sum:
// row i of the strip is column i of the matrix.
void columns_to_tiles(const MatrixRows& from, int64_t rows, int64_t columns, uint32_t* out);

// rows_to_panels (kernels/cpu/products/panels.h) for pairs of bf16, up to an even number of rows.
void pairs_to_panels(const MatrixRows& from, int64_t rows, int64_t columns, int64_t panel,
                     uint32_t* out);

// transpose_to_panel (kernels/cpu/products/panels.h) for pairs of bf16.
void pairs_to_panel(const MatrixRows& from, int64_t rows, int64_t elements, const std::byte* next,
                    uint32_t* out);

// to[j * to_stride + i] = from[i * from_stride + j] for up to multiples of 16 rows and columns,
// which both matrices must have room for.
void transpose_sums(const float* from, int64_t from_stride, int64_t rows, int64_t columns,
                    float* to, int64_t to_stride);

}  // namespace megatron::kernels::cpu
