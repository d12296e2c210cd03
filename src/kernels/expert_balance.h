// Selects experts with balanced loads.
#pragma once

#include "kernels/route.h"

namespace megatron::kernels {

// Assigns T tokens to E experts with equal loads, as close as possible to the softmax of the logits
// (Sinkhorn 1964; Cuturi 2013): out[t,e] = r[t] K[t,e] c[e], K[t,e] = exp(logits[t,e] - max of
// logits[t,:]). Starting with c = 1, alternates r[t] = 1 / (T (sum over e of c[e] K[t,e] + 1e-8))
// and c[e] = 1 / (E (sum over t of r[t] K[t,e] + 1e-8)) until the mean over e of the change of c[e]
// is at most `tolerance`, or `iterations` times. All in f64. logits, out f32 or f64 [T,E] of one
// type. counted i32 [T] or undefined: tokens with a negative number are left out, T is the number
// of the others, and their rows of out are 0.
struct SinkhornArgs {
  double tolerance = 1e-4;
  int64_t iterations = 1000;
  Tensor logits, counted, out;
};

// Thresholds to subtract from each expert's scores so that it is among the k best for about T k / E
// tokens: with s of RouteArgs and alpha[t] the (k + 1)-th highest of s[t,:] + bias, thresholds[e]
// is the (floor(T k / E) + 1)-th highest over t of s[t,e] - alpha[t]. NaN is the lowest value. k <
// E, T > 0; logits [T,E], bias, thresholds [E], f32 or f64 of one type. counted i32 [T] or
// undefined: tokens with a negative number are left out, and T is the number of the others; the
// thresholds of none are 0.
struct ExpertThresholdsArgs {
  RouterForm form;  // must not have groups
  int64_t k = 1;
  Tensor logits, bias, counted;
  Tensor thresholds;
};

// bias[e] = ema * bias[e] - (1 - ema) * sums[e] / sums[E]; unchanged if sums[E] is 0. sums [E+1],
// bias [E], f32 or f64 of one type.
struct ThresholdBiasArgs {
  double ema = 0;
  Tensor sums, bias;
};

void check(const SinkhornArgs& args);
void check(const ExpertThresholdsArgs& args);
void check(const ThresholdBiasArgs& args);

template <class F>
void visit(SinkhornArgs& a, F&& f) {
  f("logits", Access::read, a.logits);
  f("counted", Access::read, a.counted);
  f("out", Access::write, a.out);
}
template <class F>
void visit(ExpertThresholdsArgs& a, F&& f) {
  f("logits", Access::read, a.logits);
  f("bias", Access::read, a.bias);
  f("counted", Access::read, a.counted);
  f("thresholds", Access::write, a.thresholds);
}
template <class F>
void visit(ThresholdBiasArgs& a, F&& f) {
  f("sums", Access::read, a.sums);
  f("bias", Access::update, a.bias);
}

}  // namespace megatron::kernels
