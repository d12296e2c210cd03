// Converts matrices to the words and panels that kernels/cpu/products/tiles.h multiplies, and sums
// back to matrices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu/products/tiles.h"

namespace megatron::kernels::cpu {

// Rows of f32 or bf16 elements with a stride in elements. As words of a kind they are used as
// stored (f32; pairs of bf16: elements 2 l and 2 l + 1 of a row) or widened from bf16 to f32.
struct MatrixRows {
  const std::byte* base;
  int64_t stride;
  DType type;
};

// out[r * width + l] = word l of row r; width = words(kind, elements).
void rows_to_words(WordKind kind, const MatrixRows& from, int64_t rows, int64_t elements,
                   uint32_t* out);

// Transposes up to kPanel rows: out[l * kPanel + r] = word l of row r, 0 for r >= rows. next: the
// rows that the next call reads, of the same stride and length, or null. They are prefetched
// meanwhile.
void transpose_to_panel(WordKind kind, const MatrixRows& from, int64_t rows, int64_t elements,
                        const std::byte* next, uint32_t* out);

// Panels of the matrix itself, for sums over rows: word l of column j is at out[j / kPanel * panel
// + l * kPanel + j % kPanel], and comes from rows 2 l and 2 l + 1 if they are paired. Rows up to
// `padded` (even) and columns up to a multiple of kPanel are 0.
void rows_to_panels(WordKind kind, const MatrixRows& from, int64_t rows, int64_t padded,
                    int64_t elements, int64_t panel, uint32_t* out);

// Transposes the matrix into strips of tile_strip(kind) rows, the form of tile_product's first
// factor in f32 or bf16_pair (a_row 1, a_step strip); for bf16_amx into panels. Word l of column j
// is at out[(j / strip * width + l) * strip + j % strip], and comes from rows 2 l and 2 l + 1 if
// they are paired; width = words(kind, rows). The last strip is written completely, and so is the
// one after it if two strips fill a vector's 16 words; columns beyond the last are 0.
void rows_to_strips(WordKind kind, const MatrixRows& from, int64_t rows, int64_t elements,
                    int64_t strip, uint32_t* out);

// Prefetches rows that a later call reads.
void prefetch_rows(const MatrixRows& rows, int64_t count, int64_t elements);

// out = factor * sums + bias + (accumulate ? out : 0) in f32, rounded once; out and bias of f32 or
// bf16.
struct StoreSums {
  int64_t rows, columns;
  const float* sums;
  int64_t sums_stride;
  float factor = 1;
  const std::byte* bias;  // [columns], may be null
  DType bias_type;
  bool accumulate;
  std::byte* out;
  int64_t out_stride;  // elements
  DType out_type;
};
void store_sums(const StoreSums& args);

}  // namespace megatron::kernels::cpu
