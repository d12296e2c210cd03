// Learning rate and weight decay as pure functions of the number of samples seen (Megatron-LM's
// scheduler).
#pragma once

#include <cstdint>
#include <optional>

namespace megatron::optim {

enum class DecayStyle { constant, linear, cosine, inverse_square_root, wsd };
enum class WsdStyle { exponential, linear, cosine, minus_sqrt };

// All counts are samples. n = samples consumed before the step:
//   n <= warmup (and warmup > 0): warmup_init + (max - warmup_init) n / warmup;   constant: max; n
//   > decay: min; inverse-square-root: max(min, max sqrt(max(warmup, 1)) / sqrt(max(n, 1))); else
//   min + c (max - min), r = (n - warmup) / (decay - warmup): linear c = 1 - r, cosine c = (cos(pi
//   r) + 1) / 2; WSD (warm-up, stable, decay; Hu et al., arXiv 2404.06395): c = 1 up to decay -
//   wsd, then, with t = (n - decay + wsd) / wsd: linear 1 - t, cosine (cos(pi t) + 1) / 2,
//   exponential 2 * 0.5^t - 1, minus_sqrt 1 - sqrt(t).
struct LearningRate {
  // Embedding and output layer can have their own highest and lowest rates.
  struct Range {
    double max = 0, min = 0;
  };

  double max = 0, min = 0, warmup_init = 0;
  double warmup = 0;  // may be fractional (--lr-warmup-fraction)
  double decay = 0;
  DecayStyle style = DecayStyle::linear;
  double wsd = 0;  // length of the WSD decay
  WsdStyle wsd_style = WsdStyle::exponential;
  std::optional<Range> decoupled;

  // Throws Error naming the flags: 0 <= min <= max, warmup_init <= max, warmup < decay, 0 < wsd <=
  // decay.
  void check() const;
  double at(int64_t samples) const { return at(samples, {max, min}); }
  std::optional<double> decoupled_at(int64_t samples) const {
    return decoupled ? std::optional(at(samples, *decoupled)) : std::nullopt;
  }

 private:
  double at(int64_t samples, const Range& range) const;
};

enum class DecayIncrease { constant, linear, cosine };

// start + q (end - start), q = n / steps, or (cos(pi (1 - n / steps)) + 1) / 2; end after `steps`.
struct WeightDecay {
  double start = 0.01, end = 0.01;
  int64_t steps = 0;
  DecayIncrease style = DecayIncrease::constant;

  // Throws Error unless 0 <= start <= end, or if they differ with a constant schedule.
  void check() const;
  double at(int64_t samples) const;
};

}  // namespace megatron::optim
