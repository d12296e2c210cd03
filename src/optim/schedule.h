// Learning rate and weight decay as pure functions of the number of samples seen (Megatron-LM's
// scheduler).
#pragma once

#include <cstdint>

namespace megatron::optim {

enum class DecayStyle { constant, linear, cosine, inverse_square_root };

// All counts are samples. n = samples consumed before the step:
//   n <= warmup (and warmup > 0): warmup_init + (max - warmup_init) n / warmup;   constant: max; n
//   > decay: min; inverse-square-root: max(min, max sqrt(max(warmup, 1)) / sqrt(max(n, 1))); else
//   min + c (max - min), r = (n - warmup) / (decay - warmup): linear c = 1 - r, cosine c = (cos(pi
//   r) + 1) / 2.
struct LearningRate {
  double max = 0, min = 0, warmup_init = 0;
  double warmup = 0;  // may be fractional (--lr-warmup-fraction)
  double decay = 0;
  DecayStyle style = DecayStyle::linear;

  // Throws Error naming the flags: 0 <= min <= max, warmup_init <= max, warmup < decay.
  void check() const;
  double at(int64_t samples) const;
};

enum class DecayIncrease { constant, linear, cosine };

// start + q (end - start), q = n / steps, or (cos(pi (1 - n / steps)) + 1) / 2; end beyond steps.
struct WeightDecay {
  double start = 0.01, end = 0.01;
  int64_t steps = 0;
  DecayIncrease style = DecayIncrease::constant;

  void check() const;  // throws Error: 0 <= start <= end; equal when constant
  double at(int64_t samples) const;
};

}  // namespace megatron::optim
