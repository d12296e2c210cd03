// Matrices as the words and panels that kernels/cpu/products/tiles.h multiplies, and sums back to
// matrices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu/products/tiles.h"

namespace megatron::kernels::cpu {

// Rows of f32 or bf16 elements, `stride` elements apart. As words of a kind they are what they are
// (f32; pairs of bf16: elements 2 l and 2 l + 1 of a row) or bf16 widened to f32.
struct MatrixRows {
  const std::byte* base;
  int64_t stride;
  DType type;
};

// out[r * width + l] = word l of row r; width = words(kind, elements).
void rows_to_words(WordKind kind, const MatrixRows& from, int64_t rows, int64_t elements,
                   uint32_t* out);

// The transpose of up to kPanel rows: out[l * kPanel + r] = word l of row r, 0 for r >= rows.
// next: the rows that the next call reads, of the same stride and length, or null: they are brought
// into the cache meanwhile.
void transpose_to_panel(WordKind kind, const MatrixRows& from, int64_t rows, int64_t elements,
                        const std::byte* next, uint32_t* out);

// Panels of the matrix itself, summed over rows: word l of column j, of rows 2 l and 2 l + 1 where
// they are paired, at out[j / kPanel * panel + l * kPanel + j % kPanel]. Rows up to `padded` (even)
// and columns up to a multiple of kPanel are 0.
void rows_to_panels(WordKind kind, const MatrixRows& from, int64_t rows, int64_t padded,
                    int64_t elements, int64_t panel, uint32_t* out);

// The transpose of the matrix in strips of tile_strip(kind) rows, as tile_product takes its first
// factor of f32 or bf16_pair (a_row 1, a_step strip); of bf16_amx it takes panels. Word l of column
// j at out[(j / strip * width + l) * strip + j % strip], of rows 2 l and 2 l + 1 where they are
// paired; width = words(kind, rows). The last strip is written whole, and the one after it where
// two are a vector's 16 words; columns beyond the last are 0.
void rows_to_strips(WordKind kind, const MatrixRows& from, int64_t rows, int64_t elements,
                    int64_t strip, uint32_t* out);

// Asks for rows that a later call reads.
void prefetch_rows(const MatrixRows& rows, int64_t count, int64_t elements);

// out = sums + bias + (accumulate ? out : 0) in f32, rounded once; out and bias of f32 or bf16.
struct StoreSums {
  int64_t rows, columns;
  const float* sums;
  int64_t sums_stride;
  const std::byte* bias;  // [columns] or null
  DType bias_type;
  bool accumulate;
  std::byte* out;
  int64_t out_stride;  // elements
  DType out_type;
};
void store_sums(const StoreSums& args);

}  // namespace megatron::kernels::cpu
