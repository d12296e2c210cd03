// The factor on the loss that keeps fp16 gradients away from zero and from overflow (Micikevicius
// et al. 2018).
#pragma once

#include <cstdint>
#include <optional>

namespace megatron::optim {

// Megatron-LM's --loss-scale, --initial-loss-scale, --min-loss-scale, --loss-scale-window,
// --hysteresis.
struct LossScaleSettings {
  std::optional<double> constant;  // that scale for the whole run; absent or 0: a dynamic one
  double initial = 4294967296;     // 2^32
  double least = 1;
  int64_t window = 1000;
  int64_t hysteresis = 2;
};

// After a step whose gradients overflowed, `hysteresis` overflows are counted down, and from the
// one that makes it 0 on each halves the scale, not below `least`. After `window` steps in a row
// without overflow the scale doubles and the count is full again. An overflow begins a new window;
// a step without one does not fill the count. A constant scale stays.
class LossScale {
 public:
  explicit LossScale(const LossScaleSettings& settings);

  double value() const { return state_.value; }
  bool dynamic() const { return settings_.constant.value_or(0) == 0; }
  bool least() const { return !dynamic() || state_.value <= settings_.least; }
  void after_step(bool overflow);

  // What the next steps depend on; of a dynamic scale only.
  struct State {
    double value = 1;
    int64_t good_steps = 0;      // of the window
    int64_t overflows_left = 0;  // of the hysteresis; 0 or less: each halves
  };
  const State& state() const { return state_; }
  void resume(const State& state) { state_ = state; }

 private:
  LossScaleSettings settings_;
  State state_;
};

}  // namespace megatron::optim
