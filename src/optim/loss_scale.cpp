#include "optim/loss_scale.h"

#include <algorithm>

namespace megatron::optim {

LossScale::LossScale(const LossScaleSettings& settings)
    : settings_(settings),
      state_{.value = dynamic() ? settings.initial : *settings.constant,
             .overflows_left = settings.hysteresis} {}

void LossScale::after_step(bool overflow) {
  if (!dynamic()) return;
  if (overflow) {
    state_.good_steps = 0;
    if (--state_.overflows_left <= 0) state_.value = std::max(state_.value * 0.5, settings_.least);
  } else if (++state_.good_steps == settings_.window) {
    state_.good_steps = 0;
    state_.overflows_left = settings_.hysteresis;
    state_.value *= 2;
  }
}

}  // namespace megatron::optim
