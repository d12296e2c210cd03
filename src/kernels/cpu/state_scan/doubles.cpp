// The scan's row functions and products in f64, as plain loops.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/state_scan/rows.h"

namespace megatron::kernels::cpu {
namespace {

constexpr int64_t kTokens = kScanChunk;

double soft_plus(double z) { return std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z))); }

const double* row_of(const MatrixRows& rows, int64_t r) {
  return reinterpret_cast<const double*>(rows.base) + r * rows.stride;
}
double* writable_row(const MatrixRows& rows, int64_t r) {
  return const_cast<double*>(row_of(rows, r));
}

double decay_between(const ScanDecays<double>& d, int64_t from, int64_t to) {
  return std::exp((d.high[to] - d.high[from]) + (d.low[to] - d.low[from]));
}

}  // namespace

void scan_steps(const ScanLimits<double>& limits, const double* dt, int64_t count, double* steps) {
  for (int64_t i = 0; i < count; ++i)
    steps[i] = std::min(std::max(soft_plus(dt[i] + limits.bias), limits.least), limits.most);
}

void scan_step_gradients(const ScanLimits<double>& limits, const double* dt, const double* dsteps,
                         int64_t count, double* ddt) {
  for (int64_t i = 0; i < count; ++i) {
    const double z = dt[i] + limits.bias, open = soft_plus(z);
    ddt[i] = open < limits.least || open > limits.most ? 0 : dsteps[i] / (1 + std::exp(-z));
  }
}

void scan_exp(const double* y, int64_t count, double* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = std::exp(y[i]);
}

void mask_rows(const MaskRows<double>& rows) {
  for (int64_t i = rows.first; i < rows.end; ++i) {
    for (int64_t j = 0; j < kTokens; ++j) {
      const bool seen = j >= rows.begin[i] && j <= i;
      rows.out[i * kTokens + j] =
          seen ? rows.g[i * kTokens + j] * decay_between(rows.decays, j, i) * rows.decays.steps[j]
               : 0;
    }
  }
}

void mask_gradient(const MaskGradient<double>& rows) {
  const ScanDecays<double>& d = rows.decays;
  std::fill_n(rows.log_sums, kTokens, 0.0);
  for (int64_t j = 0; j < rows.count; ++j) {
    std::fill_n(rows.m + j * kTokens, kTokens, 0.0);
    double sum = 0;
    for (int64_t i = j; i < rows.end[j]; ++i) {
      const int64_t at = j * kTokens + i;
      const double decay = decay_between(d, j, i), m = rows.g[at] * decay;
      rows.m[at] = m * d.steps[j];
      rows.dg[at] += rows.dm[at] * decay * d.steps[j];
      if (i == j) continue;
      sum += rows.dm[at] * m;
      rows.log_sums[i] += rows.dm[at] * m * d.steps[j];
    }
    rows.log_sums[j] -= d.steps[j] * sum;
    rows.row_sums[j] = sum + rows.dm[j * kTokens + j] * rows.g[j * kTokens + j];
  }
}

void weighted_panels(WordKind, const MatrixRows& from, const double* weights, int64_t rows,
                     int64_t padded, int64_t elements, int64_t panel, double* out) {
  for (int64_t r = 0; r < padded; ++r)
    for (int64_t j = 0; j < round_up(elements, kPanel); ++j)
      out[j / kPanel * panel + r * kPanel + j % kPanel] =
          r < rows && j < elements ? row_of(from, r)[j] * weights[r] : 0;
}

void scale_values(double* values, int64_t count, double factor) {
  for (int64_t i = 0; i < count; ++i) values[i] *= factor;
}

void state_to_words(WordKind, const double* state, int64_t rows, int64_t columns, double* out) {
  for (int64_t n = 0; n < rows; ++n)
    for (int64_t p = 0; p < columns; ++p)
      out[n * columns + p] = state[p / kPanel * kPanel * rows + n * kPanel + p % kPanel];
}

double state_product(WordKind, const double* state, int64_t rows, int64_t columns,
                     const double* words) {
  double sum = 0;
  for (int64_t n = 0; n < rows; ++n)
    for (int64_t p = 0; p < columns; ++p)
      sum += state[p / kPanel * kPanel * rows + n * kPanel + p % kPanel] * words[n * columns + p];
  return sum;
}

void scan_outputs(const ScanOutputs<double>& rows) {
  for (int64_t i = 0; i < rows.rows; ++i) {
    const double* x = row_of(rows.x, i);
    double* out = writable_row(rows.out, i);
    for (int64_t p = 0; p < rows.width; ++p) {
      const int64_t at = i * rows.stride + p;
      double y = rows.inside[at] + rows.d * x[p];
      if (i < rows.inherits) y += rows.factors[i] * rows.before[at];
      out[p] = y + 0.0;
    }
  }
}

double input_gradients(const InputGradients<double>& rows) {
  double total = 0;
  for (int64_t j = 0; j < rows.rows; ++j) {
    const double *x = row_of(rows.x, j), *dy = row_of(rows.dy, j);
    double* dx = writable_row(rows.dx, j);
    rows.sums[j] = 0;
    for (int64_t p = 0; p < rows.width; ++p) {
      const int64_t at = j * rows.stride + p;
      total += x[p] * dy[p];
      dx[p] = rows.inside[at] + rows.d * dy[p];
      if (rows.after == nullptr) continue;
      dx[p] += rows.weights[j] * rows.after[at];
      rows.sums[j] += x[p] * rows.after[at];
    }
  }
  return total;
}

void add_columns(const ColumnSums64<double>& c) {
  for (int64_t i = 0; i < kTokens; ++i) {
    double dot = 0;
    for (int64_t n = 0; n < c.rows; ++n) {
      const double value = c.values[n * kTokens + i];
      c.sums[n * kTokens + i] += c.factors[i] * value;
      if (c.with != nullptr)
        dot += c.with[i / kPanel * c.rows * kPanel + n * kPanel + i % kPanel] * value;
    }
    if (c.with != nullptr) c.dots[i] = dot;
  }
}

void tile_product(WordKind, const DoubleTileProduct& p) {
  for (int64_t j = 0; j < p.n; j += kPanel) {
    for (int64_t i = 0; i < p.m; ++i) {
      double* c = p.c + i * p.ldc + j;
      double sums[kPanel] = {};
      if (p.accumulate) std::copy_n(c, kPanel, sums);
      const double *a = p.a + i * p.a_row, *b = p.b + j / kPanel * p.panel;
      for (int64_t l = 0; l < p.k; ++l, a += p.a_step, b += kPanel)
        for (int64_t r = 0; r < kPanel; ++r) sums[r] += *a * b[r];
      std::copy_n(sums, kPanel, c);
    }
  }
}

void rows_to_words(WordKind, const MatrixRows& from, int64_t rows, int64_t elements, double* out) {
  for (int64_t r = 0; r < rows; ++r) std::copy_n(row_of(from, r), elements, out + r * elements);
}

void transpose_to_panel(WordKind, const MatrixRows& from, int64_t rows, int64_t elements,
                        const std::byte*, double* out) {
  for (int64_t l = 0; l < elements; ++l)
    for (int64_t r = 0; r < kPanel; ++r) out[l * kPanel + r] = r < rows ? row_of(from, r)[l] : 0;
}

void rows_to_panels(WordKind, const MatrixRows& from, int64_t rows, int64_t padded,
                    int64_t elements, int64_t panel, double* out) {
  for (int64_t r = 0; r < padded; ++r)
    for (int64_t j = 0; j < round_up(elements, kPanel); ++j)
      out[j / kPanel * panel + r * kPanel + j % kPanel] =
          r < rows && j < elements ? row_of(from, r)[j] : 0;
}

}  // namespace megatron::kernels::cpu
