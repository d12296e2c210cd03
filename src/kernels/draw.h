// Draws initial values of weights in place.
#pragma once

#include <cstdint>

#include "kernels/access.h"

namespace megatron::kernels {

// out[r, c] = scale times draw first + r * step + c of RandomStream(seed, stream) (base/philox.h):
// `normal`, or `uniform` in [-1, 1). Computed in f64 and rounded to out's type through f32 (f64
// unchanged). out [rows, columns], columns contiguous. Each draw is independent of what else is
// drawn. Back-ends other than the reference compute logarithm, sine and cosine by the same
// additions and products (draw_terms.h), so they give the same bits.
struct DrawArgs {
  enum class Kind { normal, uniform };

  Kind kind = Kind::normal;
  double scale = 1;
  uint64_t seed = 0, stream = 0;
  int64_t first = 0, step = 0;
  Tensor out;
};

void check(const DrawArgs& args);

template <class F>
void visit(DrawArgs& a, F&& f) {
  f("out", Access::write, a.out);
}

}  // namespace megatron::kernels
