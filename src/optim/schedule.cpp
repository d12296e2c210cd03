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
           "the learning rate warms up over {} samples but decays over {}; the warm-up must be "
           "shorter: change --lr-warmup-iters, --lr-warmup-fraction or --lr-decay-iters",
           warmup, decay);
  MG_CHECK(
      style != DecayStyle::wsd || (wsd > 0 && wsd <= decay),
      "--lr-decay-style WSD decays over the last {} of {} samples; it must be at least one and "
      "at most all of them: change --lr-wsd-decay-iters or --lr-wsd-decay-samples",
      wsd, decay);
  if (!decoupled) return;
  MG_CHECK(decoupled->max >= 0 && std::isfinite(decoupled->max),
           "--decoupled-lr is {}; it must be 0 or more", decoupled->max);
  MG_CHECK(decoupled->min >= 0 && decoupled->min <= decoupled->max,
           "--decoupled-min-lr (default --min-lr) is {}; it must lie between 0 and --decoupled-lr "
           "{}",
           decoupled->min, decoupled->max);
}

namespace {

double cosine(double t) { return 0.5 * (std::cos(std::numbers::pi * t) + 1); }

double wsd_share(WsdStyle style, double t) {
  switch (style) {
    case WsdStyle::linear: return 1 - t;
    case WsdStyle::cosine: return cosine(t);
    case WsdStyle::exponential: return 2 * std::pow(0.5, t) - 1;
    case WsdStyle::minus_sqrt: return 1 - std::sqrt(t);
  }
  return 1;
}

}  // namespace

double LearningRate::at(int64_t samples, const Range& range) const {
  const double n = static_cast<double>(samples);
  if (warmup > 0 && n <= warmup) return warmup_init + (range.max - warmup_init) * n / warmup;
  if (style == DecayStyle::constant) return range.max;
  if (n > decay) return range.min;
  const double ratio = (n - warmup) / (decay - warmup);
  const auto between = [&range](double c) { return range.min + c * (range.max - range.min); };
  switch (style) {
    case DecayStyle::inverse_square_root:
      return std::max(range.min,
                      range.max * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(std::max(n, 1.0)));
    case DecayStyle::wsd: {
      const double begin = decay - wsd;
      return between(n <= begin ? 1 : wsd_share(wsd_style, (n - begin) / wsd));
    }
    case DecayStyle::cosine: return between(cosine(ratio));
    default: return between(1 - ratio);
  }
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
  const double c = style == DecayIncrease::linear ? q : cosine(1 - q);
  return start + c * (end - start);
}

}  // namespace megatron::optim
