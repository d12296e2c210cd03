#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace megatron::optim {

void LearningRate::check() const {
  MG_CHECK(max >= 0 && std::isfinite(max), "--lr is {}; it must be 0 or more", max);
  MG_CHECK(min >= 0 && min <= max, "--min-lr is {}; it must lie between 0 and --lr {}", min, max);
  MG_CHECK(warmup_init >= 0 && warmup_init <= max,
           "--lr-warmup-init is {}; it must lie between 0 and --lr {}", warmup_init, max);
  MG_CHECK(decay > 0,
           "the learning rate decays over {} samples; --lr-decay-iters (or --train-iters) must be "
           "positive",
           decay);
  MG_CHECK(warmup >= 0 && warmup < decay,
           "the learning rate warms up over {} samples and decays over {}; warm-up must be "
           "shorter: change "
           "--lr-warmup-iters, --lr-warmup-fraction or --lr-decay-iters",
           warmup, decay);
}

double LearningRate::at(int64_t samples) const {
  const double n = static_cast<double>(samples);
  if (warmup > 0 && n <= warmup) return warmup_init + (max - warmup_init) * n / warmup;
  if (style == DecayStyle::constant) return max;
  if (n > decay) return min;
  if (style == DecayStyle::inverse_square_root) {
    return std::max(min, max * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(std::max(n, 1.0)));
  }
  const double ratio = (n - warmup) / (decay - warmup);
  const double c =
      style == DecayStyle::linear ? 1 - ratio : 0.5 * (std::cos(std::numbers::pi * ratio) + 1);
  return min + c * (max - min);
}

void WeightDecay::check() const {
  MG_CHECK(
      start >= 0 && end >= start && std::isfinite(end),
      "weight decay goes from {} to {}; it must be 0 <= --start-weight-decay <= --end-weight-decay",
      start, end);
  MG_CHECK(style != DecayIncrease::constant || start == end,
           "--weight-decay-incr-style constant with --start-weight-decay {} and --end-weight-decay "
           "{}; use linear or cosine",
           start, end);
}

double WeightDecay::at(int64_t samples) const {
  if (samples > steps || style == DecayIncrease::constant) return end;
  const double q = static_cast<double>(samples) / static_cast<double>(std::max<int64_t>(steps, 1));
  const double c =
      style == DecayIncrease::linear ? q : 0.5 * (std::cos(std::numbers::pi * (1 - q)) + 1);
  return start + c * (end - start);
}

}  // namespace megatron::optim
