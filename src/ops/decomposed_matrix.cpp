// Adapters with magnitudes (DoRA; Liu et al. 2024): each row of V = w + scale * b a is scaled to
// its magnitude m. With U = V / rms(V), a row is m / sqrt(width) U.
#include <cmath>

#include "ops/low_rank.h"

namespace megatron::ops {
namespace {

// Added to mean squares, so that a row of zeros stays one; no other row sees it.
constexpr double kSmallest = 1e-30;

// One part's rows of V, normalized.
struct NormedRows {
  Tensor normed;   // U [n,in]
  Tensor rstd;     // 1 / rms(V), f32 (f64) [n]
  Tensor factors;  // m / sqrt(width), f32 (f64) [n]
};

Tensor a_of(const LowRank::Block& block, const LowRank::Part& part) {
  return block.a.value().slice(0, part.first, part.b.value().size(1));
}

NormedRows normalized(Tape& tape, const LowRank& adapter, const LowRank::Block& block,
                      const LowRank::Part& part, const Tensor& w) {
  const kernels::Table& kernels = tape.kernels();
  Stream& stream = tape.stream();
  const Tensor &b = part.b.value(), &m = part.magnitude.value();
  const int64_t n = b.size(0), in = w.size(1);
  const DType type = w.dtype(), sums = kernels::accumulator(type);
  const Tensor v = tape.empty({n, in}, type, "dora.v"),
               scaled = tape.empty(b.shape(), type, "dora.b");
  kernels.copy({.x = w.slice(0, part.row, n), .out = v}, stream);
  kernels.scale({.factor = block.scale, .x = b, .out = scaled}, stream);
  kernels.gemm({.a = scaled, .b = a_of(block, part), .out = v, .beta = 1}, stream);
  NormedRows rows{.normed = tape.empty({n, in}, type, "dora.normed"),
                  .rstd = tape.empty({n}, sums, "dora.rstd"),
                  .factors = tape.empty({n}, sums, "dora.factors")};
  kernels::HeadNormArgs norm{.kind = kernels::NormKind::rms,
                             .x = v.view({n, 1, in}),
                             .eps = kSmallest,
                             .out = rows.normed.view({n, 1, in}),
                             .rstd = rows.rstd.view({n, 1})};
  if (adapter.add_up) {
    norm.squares = tape.empty({n, 1}, sums, "dora.squares");
    norm.row_width = adapter.row_width;
    kernels.row_dot({.a = norm.x, .b = norm.x, .out = norm.squares}, stream);
    adapter.add_up(norm.squares, stream);
  }
  kernels.head_norm(norm, stream);
  kernels.copy({.x = m, .out = rows.factors}, stream);
  kernels.scale({.factor = 1 / std::sqrt(static_cast<double>(adapter.row_width)),
                 .x = rows.factors,
                 .out = rows.factors},
                stream);
  return rows;
}

// slot = value + beta * slot.
void add_to(Tape& tape, const GradSlot& slot, const Tensor& value) {
  if (slot.beta == 0) tape.kernels().copy({.x = value, .out = slot.out}, tape.stream());
  else tape.kernels().add({.a = slot.out, .b = value, .out = slot.out}, tape.stream());
}

}  // namespace

Tensor decomposed_matrix(const LowRank& adapter, Tape& tape, const Tensor& w) {
  const Tensor matrix = tape.empty(w.shape(), w.dtype(), "dora.matrix");
  tape.kernels().copy({.x = w, .out = matrix}, tape.stream());
  for (const LowRank::Block& block : adapter.blocks) {
    for (const LowRank::Part& part : block.parts) {
      const NormedRows rows = normalized(tape, adapter, block, part, w);
      tape.kernels().scale_rows({.x = rows.normed,
                                 .factors = rows.factors,
                                 .out = matrix.slice(0, part.row, part.b.value().size(0))},
                                tape.stream());
    }
  }
  return matrix;
}

void add_decomposed_gradients(const LowRank& adapter, Tape& tape, const Tensor& w, const Tensor& dy,
                              const Tensor& x) {
  const kernels::Table& kernels = tape.kernels();
  Stream& stream = tape.stream();
  const Tensor gradient = tape.empty(w.shape(), w.dtype(), "dora.gradient");
  kernels.gemm({.a = dy, .b = x, .out = gradient, .transpose_a = true}, stream);
  for (const LowRank::Block& block : adapter.blocks) {
    const GradSlot da = tape.grad_slot(block.a);
    for (const LowRank::Part& part : block.parts) {
      const NormedRows rows = normalized(tape, adapter, block, part, w);
      const int64_t n = rows.rstd.size(0), r = part.b.value().size(1);
      const Tensor dv = gradient.slice(0, part.row, n),
                   dm = tape.empty({n}, rows.factors.dtype(), "dora.magnitude, gradient");
      kernels.scale_rows_backward(
          {.x = rows.normed, .factors = rows.factors, .dout = dv, .dx = dv, .dfactors = dm},
          stream);
      kernels.scale(
          {.factor = 1 / std::sqrt(static_cast<double>(adapter.row_width)), .x = dm, .out = dm},
          stream);
      if (const GradSlot slot = tape.grad_slot(part.magnitude); slot.out.defined())
        add_to(tape, slot, dm);
      kernels.scale_rows({.x = dv, .factors = rows.rstd, .out = dv}, stream);
      kernels.scale({.factor = block.scale, .x = dv, .out = dv}, stream);
      if (const GradSlot db = tape.grad_slot(part.b); db.out.defined())
        kernels.gemm(
            {.a = dv, .b = a_of(block, part), .out = db.out, .transpose_b = true, .beta = db.beta},
            stream);
      if (da.out.defined())
        kernels.gemm({.a = part.b.value(),
                      .b = dv,
                      .out = da.out.slice(0, part.first, r),
                      .transpose_a = true,
                      .beta = da.beta},
                     stream);
    }
  }
}

Tensor decomposed_difference(const LowRank& adapter, Tape& tape, const Tensor& w) {
  const Tensor difference = decomposed_matrix(adapter, tape, w),
               negative = tape.empty(w.shape(), w.dtype(), "dora.difference");
  tape.kernels().scale({.factor = -1, .x = w, .out = negative}, tape.stream());
  tape.kernels().add({.a = difference, .b = negative, .out = difference}, tape.stream());
  return difference;
}

Tensor adapted_matrix(const LowRank& adapter, Tape& tape, const Tensor& w) {
  const bool decomposes = adapter.has_magnitudes() && tape.adapts() && !drops(adapter, tape);
  return decomposes ? decomposed_matrix(adapter, tape, w) : w;
}

}  // namespace megatron::ops
