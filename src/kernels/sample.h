// Samples the next token of each row of logits on the device that holds them.
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// Columns of SampleArgs::rules, in this order (described in inference/sampling.h).
enum SampleRule { kTemperature, kTopK, kTopP, kMinP, kUniform, kSampleRules };

// ids[r] is the token sampled from row r of logits. logits [R,V], 0 < V <= 2^22, last dim
// contiguous,
// f64, f32, bf16 or f16; rules f64 [R,5]; ids i32 [R].
//
// m is the row's largest logit. Tokens are ordered by descending logit, equal ones by
// id. A token's weight is q = 2^40 e^((logit - m) / temperature), rounded to an integer, so that
// sums are exact in any order. top_k (0: all) keeps the first tokens with a logit above -infinity;
// top_p (1: all) then keeps the fewest leading tokens whose weights add up to at least top_p of the
// weight so far kept; min_p then keeps those with q >= 2^40 min_p. With S the sum of their q,
// ids[r] is the first token by id at which the running sum of q exceeds uniform S, uniform in [0,
// 1). Temperature 0 takes the first token in order. This is inference::draw's choice, unless
// uniform S, or a cut, is within V 2^-41 of the boundary between two tokens.
//
// ids[r] is -1 if a logit is NaN or m is not finite. A negative temperature skips the row, also
// with -1.
struct SampleArgs {
  Tensor logits, rules;
  Tensor ids;
};

inline constexpr double kSampleUnit = 0x1p40;
inline constexpr int64_t kMaxSampled = int64_t{1} << 22;  // V

void check(const SampleArgs& args);

template <class F>
void visit(SampleArgs& a, F&& f) {
  f("logits", Access::read, a.logits);
  f("rules", Access::read, a.rules);
  f("ids", Access::write, a.ids);
}

}  // namespace megatron::kernels
