// Ops of a router of experts (kernels/route.h, kernels/router_loss.h).
#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// x w^T + b in f32 (f64 for f64), not rounded to the type of x: [T,E]. x [T,H], w [E,H], b [E] or
// none. Backward computes in f32, too, on a copy of x. double_sums: products and sums of forward
// and backward are in f64 and rounded to f32 once.
Var router_logits(Tape& tape, const Var& x, const Weight& weight, const Weight& bias,
                  bool double_sums = false);

// Multiplies x [T,H] by random factors (kernels::JitterArgs). Returns x itself if the width is 0.
Var jitter(Tape& tape, const Var& x, double width, const kernels::NoiseRows& rows);

// Random numbers added to the logits, or replacing them if `replaces` (kernels::RandomLogitsArgs).
// The gradient passes to the logits unchanged.
struct RandomLogits {
  double scale = 1;
  kernels::RandomLogitsArgs::Of of = kernels::RandomLogitsArgs::Of::token;
  bool replaces = false;
  kernels::NoiseRows rows;
};
Var random_logits(Tape& tape, const Var& logits, const RandomLogits& random);

struct Routing {
  Tensor experts;  // i32 [T,k]
  Var weights;     // f32 (f64) [T,k]
};
// Chooses k experts for each token. bias [E], selection [T,E] or undefined: see kernels::RouteArgs.
// Saves the logits.
Routing route(Tape& tape, const Var& logits, int64_t k, const kernels::RouterForm& form,
              const Tensor& bias = {}, const Tensor& selection = {});

// Contribution of a router's losses to the objective: the sum over segments s of weight[s] *
// (balance * sum over experts of counts[s] * p + z * sum of l^2), kernels::RouterLossBackwardArgs.
// counts f32 (f64) [S,E], weight f64 [S], counted i32 [T] or undefined.
struct RouterLoss {
  kernels::RouterScore score = kernels::RouterScore::softmax;
  double balance = 0, z = 0;
  Tensor counts, weight, counted;
};
// Returns the logits; backward adds the losses' gradient to their gradient.
Var add_router_loss(Tape& tape, const Var& logits, const RouterLoss& loss);

}  // namespace megatron::ops
