// Training noise, whose random numbers depend on the element's identity, like the dropout mask
// (kernels/dropout.h).
#pragma once

#include <cstdint>

#include "kernels/access.h"
#include "kernels/dropout.h"

namespace megatron::kernels {

// Random numbers of a tensor [rows, C]: the words of dropout's counters at (sample, position,
// channel) in stream s of the seed.
struct NoiseRows {
  uint64_t seed = 0, stream = 0;
  RowTokens tokens;

  uint64_t key() const { return philox_key(seed, stream); }
};

// out = x * (1 + width * (2 u - 1)), u = floor(word / 2^8) / 2^24: a factor uniform in [1 - width,
// 1 + width) (Fedus et al. 2022, 2.2). In f32 (f64 for f64), rounded once. x, out [B * T, C]
// contiguous, of one floating type; out may be x. The gradient is the same call on dout.
struct JitterArgs {
  double width = 0;
  NoiseRows rows;
  Tensor x, out;
};

// out[t,e] = x[t,e] + scale * g, where g is approximately normal with mean 0 and variance 1:
// sqrt(3) (w / 2^32 - 2), w the sum of all four words of the counter {e, position, low and high 32
// bits of sample}. of: sample: position is 0 for all tokens; all: position and sample are 0, and
// sample_ids may be undefined. x f32 or f64 [B * T, E], or undefined: 0; out of its type. In f64,
// rounded once.
struct RandomLogitsArgs {
  enum class Of { token, sample, all };

  double scale = 1;
  Of of = Of::token;
  NoiseRows rows;
  Tensor x, out;
};

void check(const JitterArgs& args);
void check(const RandomLogitsArgs& args);

template <class F>
void visit(JitterArgs& a, F&& f) {
  f("sample_ids", Access::read, a.rows.tokens.sample_ids);
  f("positions", Access::read, a.rows.tokens.positions);
  f("x", Access::read, a.x);
  f("out", Access::write, a.out);
}
template <class F>
void visit(RandomLogitsArgs& a, F&& f) {
  f("sample_ids", Access::read, a.rows.tokens.sample_ids);
  f("positions", Access::read, a.rows.tokens.positions);
  f("x", Access::read, a.x);
  f("out", Access::write, a.out);
}

}  // namespace megatron::kernels
