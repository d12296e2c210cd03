// Element-wise part of the scan by chunks: processes rows of a chunk between the products. f64 is
// computed by plain loops (doubles.cpp).
#pragma once

#include <cstdint>

#include "kernels/cpu/products/panels.h"
#include "kernels/state_scan.h"

namespace megatron::kernels::cpu {

// Words of operands of products: f32 or pairs of bf16 (kernels/cpu/products/tiles.h), or f64.
template <class N>
struct WordsOf {
  using type = uint32_t;
};
template <>
struct WordsOf<double> {
  using type = double;
};
template <class N>
using Word = typename WordsOf<N>::type;

// What turns dt of one head into steps.
template <class N>
struct ScanLimits {
  N bias, least, most;
};
void scan_steps(const ScanLimits<float>& limits, const float* dt, int64_t count, float* steps);
void scan_steps(const ScanLimits<double>& limits, const double* dt, int64_t count, double* steps);
// ddt = dsteps times the derivative of the step.
void scan_step_gradients(const ScanLimits<float>& limits, const float* dt, const float* dsteps,
                         int64_t count, float* ddt);
void scan_step_gradients(const ScanLimits<double>& limits, const double* dt, const double* dsteps,
                         int64_t count, double* ddt);

// Decays of one head in one chunk. high + low is the logarithm of the decay from the chunk's start
// through each token, as two numbers, so that differences lose nothing.
template <class N>
struct ScanDecays {
  alignas(64) N steps[kScanChunk];
  alignas(64) N high[kScanChunk], low[kScanChunk];
  alignas(64) N from_start[kScanChunk];  // decay from the chunk's start through each token
  alignas(64) N to_end[kScanChunk];      // from after each token to the chunk's end; 0: forgotten
  alignas(64) N weights[kScanChunk];     // to_end * steps
  N whole;                               // decay of the whole chunk
};
// out[i] = e^y[i] for y <= 0; out may be y.
void scan_exp(const float* y, int64_t count, float* out);
void scan_exp(const double* y, int64_t count, double* out);

// Rows [first, end) of M: M[i,j] = g[i,j] decay(j to i) step_j for begin[i] <= j <= i, else 0. As
// words, rows of words(kind, kScanChunk); rows below 32 have columns up to 32 only.
template <class N>
struct MaskRows {
  int64_t first, end;
  WordKind kind;
  const ScanDecays<N>& decays;
  const int32_t* begin;  // [kScanChunk]
  const N* g;            // rows of kScanChunk
  Word<N>* out;
};
void mask_rows(const MaskRows<float>& rows);
void mask_rows(const MaskRows<double>& rows);

// The same transposed, with gradients; rows j and columns i of `count` tokens, j <= i < end[j]. m:
// M^T as words. Adds the gradient of g^T to dg, and sets row_sums[j] = sum over i of dM g decay,
// and log_sums[t], the gradient with respect to the logarithm of the decay through t: terms of
// pairs of tokens that are added at one and subtracted at the other. They cancel in sums over t, so
// these sums are in f64.
template <class N>
struct MaskGradient {
  int64_t count;
  WordKind kind;
  const ScanDecays<N>& decays;
  const int32_t* end;  // [kScanChunk]
  const N *g, *dm;     // transposed, rows of kScanChunk
  Word<N>* m;
  N *dg, *row_sums;
  double* log_sums;
};
void mask_gradient(const MaskGradient<float>& rows);
void mask_gradient(const MaskGradient<double>& rows);

// rows_to_panels (kernels/cpu/products/panels.h) of rows times weights, rounded to the type of a
// paired kind.
void weighted_panels(WordKind kind, const MatrixRows& from, const float* weights, int64_t rows,
                     int64_t padded, int64_t elements, int64_t panel, uint32_t* out);
void weighted_panels(WordKind kind, const MatrixRows& from, const double* weights, int64_t rows,
                     int64_t padded, int64_t elements, int64_t panel, double* out);

// States of a head are kept transposed, as panels: [columns / kPanel][rows][kPanel]. One panel as
// pairs of rows, the form of a second factor of paired kinds.
void pair_state_rows(const float* panel, int64_t rows, uint32_t* pairs);
// values *= factor.
void scale_values(float* values, int64_t count, float factor);
void scale_values(double* values, int64_t count, double factor);
// Rows of all panels as words(kind, columns) words each, the form of a first factor.
void state_to_words(WordKind kind, const float* state, int64_t rows, int64_t columns,
                    uint32_t* out);
void state_to_words(WordKind kind, const double* state, int64_t rows, int64_t columns, double* out);
// Sum of the products of a state's elements with those words.
float state_product(WordKind kind, const float* state, int64_t rows, int64_t columns,
                    const uint32_t* words);
double state_product(WordKind kind, const double* state, int64_t rows, int64_t columns,
                     const double* words);

// out[i] = inside[i] + factors[i] * before[i] + d * x[i], for `rows` rows of `width` elements;
// before is only read for the first `inherits` rows.
template <class N>
struct ScanOutputs {
  int64_t rows, width, inherits;
  const N *inside, *before;
  int64_t stride;
  const N* factors;
  N d;
  MatrixRows x, out;
};
void scan_outputs(const ScanOutputs<float>& rows);
void scan_outputs(const ScanOutputs<double>& rows);

// dx[j] = inside[j] + weights[j] * after[j] + d * dy[j]; after may be null. sums[j] = x[j] .
// after[j]; returns the sum of x[j] . dy[j], over j in f64: the products cancel, so that f32 would
// lose digits.
template <class N>
struct InputGradients {
  int64_t rows, width;
  const N *inside, *after;
  int64_t stride;
  const N* weights;
  N d;
  MatrixRows x, dy, dx;
  N* sums;
};
double input_gradients(const InputGradients<float>& rows);
double input_gradients(const InputGradients<double>& rows);

// sums[n,i] += factors[i] * values[n,i], rows of kScanChunk; and if `with` is not null, the panels
// of a transposed matrix as words along n (transpose_to_panel), dots[i] = sum over n of with[n,i]
// values[n,i].
template <class N>
struct ColumnSums64 {
  int64_t rows;
  WordKind kind;
  const N *factors, *values;
  const Word<N>* with;
  N *sums, *dots;
};
void add_columns(const ColumnSums64<float>& columns);
void add_columns(const ColumnSums64<double>& columns);

// Rounds values to the type of a kind's words, as rows of that type.
void round_rows(WordKind kind, const float* values, int64_t count, std::byte* out);

// The overloads for f64 of the functions of kernels/cpu/products/panels.h and tiles.h, in the same
// forms with words of f64.
struct DoubleTileProduct {
  int64_t m, n, k;
  const double* a;
  int64_t a_row, a_step;
  const double* b;
  int64_t panel;
  double* c;
  int64_t ldc;
  bool accumulate;
};
void tile_product(WordKind kind, const DoubleTileProduct& product);
void rows_to_words(WordKind kind, const MatrixRows& from, int64_t rows, int64_t elements,
                   double* out);
void transpose_to_panel(WordKind kind, const MatrixRows& from, int64_t rows, int64_t elements,
                        const std::byte* next, double* out);
void rows_to_panels(WordKind kind, const MatrixRows& from, int64_t rows, int64_t padded,
                    int64_t elements, int64_t panel, double* out);

}  // namespace megatron::kernels::cpu
