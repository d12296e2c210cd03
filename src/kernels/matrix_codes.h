// Codes of parts of a matrix, of 8 or 4 bits, for ranks that each hold a part of a weight and send
// its codes.
#pragma once

#include <algorithm>

#include "kernels/quantize.h"

namespace megatron::kernels {

// Consecutive elements of a row-major matrix with `columns` columns, from element `begin` on.
// Blocks of the matrix have edge x edge elements, fewer at its ends, and are numbered in row-major
// order; edge 0: the matrix is one block.
struct MatrixPart {
  int64_t begin = 0, columns = 1, edge = 0;

  // Block of the part's element i.
  constexpr int64_t block(int64_t i) const {
    if (edge == 0) return 0;
    const int64_t row = (begin + i) / columns, column = (begin + i) % columns;
    return row / edge * ((columns + edge - 1) / edge) + column / edge;
  }
  // Number of elements from i on, at most n, that are in one row of one block.
  constexpr int64_t run(int64_t i, int64_t n) const {
    if (edge == 0) return n;
    const int64_t column = (begin + i) % columns, of_block = edge - column % edge;
    return std::min(n, std::min(of_block, columns - column));
  }
};

// maxima[b] = the largest of itself and |x| of the elements of x in block b; NaN is ignored. x [N]
// of bf16, f32 (f64), maxima f32 [blocks of the matrix].
struct PartAmaxArgs {
  Tensor x;
  MatrixPart part;
  Tensor maxima;
};

// Bytes of the codes of n elements.
constexpr int64_t code_bytes(LowFormat format, int64_t n) {
  return format == LowFormat::e2m1 ? (n + 1) / 2 : n;
}

// codes = the codes that QuantizeArgs gives the same elements of the whole matrix. x [N] of bf16,
// f32 (f64). Formats of 8 bits: codes u8 [N], scales f32: with edge 0 one number, the multiplier
// (BlockScale::given); else the largest |x| of each block of the matrix, from which its multiplier
// follows (BlockScale::power_of_two). e2m1: codes u8 [ceil(N / 2)], element 2 i in the lower half
// of byte i; the last half is 0 for an odd N. It needs the blocks' scales, as above, and `scale`,
// the tensor's, f32 0-d (BlockScale::nvfp4).
struct EncodePartArgs {
  LowFormat format = LowFormat::e4m3;
  MatrixPart part;
  Tensor x, scales, codes, scale = {};
};

// out = the number of each code times 1 / its multiplier, both rounded to f32 (f64), in the type of
// out [N]: bf16, f32 (f64); in e2m1, times the scale of its block and 1 / that of the tensor,
// multiplied first. A code of NaN gives NaN. The others as in EncodePartArgs.
struct DecodePartArgs {
  LowFormat format = LowFormat::e4m3;
  MatrixPart part;
  Tensor codes, scales, out, scale = {};
};

void check(const PartAmaxArgs& args);
void check(const EncodePartArgs& args);
void check(const DecodePartArgs& args);

template <class F>
void visit(PartAmaxArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("maxima", Access::update, a.maxima);
}
template <class F>
void visit(EncodePartArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("scales", Access::read, a.scales);
  f("scale", Access::read, a.scale);
  f("codes", Access::write, a.codes);
}
template <class F>
void visit(DecodePartArgs& a, F&& f) {
  f("codes", Access::read, a.codes);
  f("scales", Access::read, a.scales);
  f("scale", Access::read, a.scale);
  f("out", Access::write, a.out);
}

}  // namespace megatron::kernels
