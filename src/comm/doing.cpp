#include "comm/doing.h"

#include <fmt/core.h>

namespace megatron::comm {

void Doing::step(int64_t number, bool may_be_long) {
  const std::lock_guard lock(mutex_);
  long_step_ = state_.may_be_long = may_be_long;
  state_.step = number;
  state_.phase.clear();
  state_.layer.clear();
  state_.micro_batch = -1;
}

void Doing::phase(std::string_view name, bool may_be_long) {
  const std::lock_guard lock(mutex_);
  state_.may_be_long = long_step_ || may_be_long;
  state_.phase.assign(name);
  state_.layer.clear();
  state_.micro_batch = -1;
}

void Doing::layer(std::string_view name) {
  const std::lock_guard lock(mutex_);
  state_.layer.assign(name);
}

void Doing::micro_batch(int64_t index) {
  const std::lock_guard lock(mutex_);
  state_.micro_batch = index;
}

void Doing::nothing() {
  const std::lock_guard lock(mutex_);
  state_ = {};
  long_step_ = false;
}

Doing::State Doing::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

std::string describe(const Doing::State& state) {
  std::string text;
  const auto add = [&text](const std::string& part) {
    if (!text.empty()) text += ", ";
    text += part;
  };
  if (state.step >= 0) add(fmt::format("step {}", state.step));
  if (!state.phase.empty()) add(state.phase);
  if (!state.layer.empty()) add("layer " + state.layer);
  if (state.micro_batch >= 0) add(fmt::format("micro-batch {}", state.micro_batch));
  return text.empty() ? "nothing known" : text;
}

}  // namespace megatron::comm
