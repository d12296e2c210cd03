// Loss scaling, which keeps fp16 gradients from underflow and overflow (Micikevicius et al. 2018).
#pragma once

#include <cstdint>
#include <optional>

namespace megatron::optim {

// Megatron-LM's --loss-scale, --initial-loss-scale, --min-loss-scale, --loss-scale-window,
// --hysteresis.
struct LossScaleSettings {
  std::optional<double> constant;  // constant scale for the whole run; absent or 0: dynamic
  double initial = 4294967296;     // 2^32
  double least = 1;
  int64_t window = 1000;
  int64_t hysteresis = 2;
};

// Each step whose gradients overflow decrements a counter that starts at `hysteresis`; from the
// overflow that makes it 0 on, each overflow halves the scale, but not below `least`. After
// `window` consecutive steps without overflow the scale doubles and the counter is reset. An
// overflow starts a new window; a step without one does not reset the counter. A constant scale
// does not change.
class LossScale {
 public:
  explicit LossScale(const LossScaleSettings& settings);

  double value() const { return state_.value; }
  bool dynamic() const { return settings_.constant.value_or(0) == 0; }
  bool least() const { return !dynamic() || state_.value <= settings_.least; }
  void after_step(bool overflow);

  // State that the following steps depend on; only for a dynamic scale.
  struct State {
    double value = 1;
    int64_t good_steps = 0;  // in the current window
    // Remaining hysteresis; at 0 or below, each overflow halves the scale.
    int64_t overflows_left = 0;
  };
  const State& state() const { return state_; }
  void resume(const State& state) { state_ = state; }

 private:
  LossScaleSettings settings_;
  State state_;
};

}  // namespace megatron::optim
