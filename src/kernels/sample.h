// Samples the next token of each row of logits on the device that holds them.
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// Columns of SampleArgs::rules, in this order (described in inference/sampling.h).
enum SampleRule { kTemperature, kTopK, kTopP, kMinP, kUniform, kSampleRules };

// ids[r]: what row r of logits draws. logits [R,V], 0 < V <= 2^22, last dim contiguous, f64, f32,
// bf16 or f16; rules f64 [R,5]; ids i32 [R].
//
// m is the row's largest logit, and tokens are ordered by logit, the larger first, equal ones by
// id. A token weighs q = 2^40 e^((logit - m) / temperature), rounded to an integer, so that sums
// are exact in any order. Of the first top_k (0: all) with a logit above -infinity the fewest first
// ones remain that together weigh at least top_p (1: all) of what all of these weigh, and of them
// those with q >= 2^40 min_p. With S the sum of their q, ids[r] is the first token by id such that
// the q up to it sum to more than uniform S, uniform in [0, 1). Temperature 0 takes the first token
// in order. So it is inference::draw's choice, but where uniform S, or a cut, lies within V 2^-41
// of a border between two tokens.
//
// ids[r] is -1 where a logit is NaN or m not finite, and where the temperature is negative: the row
// is left out.
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
