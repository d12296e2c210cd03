// Number formats of a run, and its reaction to values that are not finite.
#pragma once

#include <optional>

#include "base/dtype.h"
#include "base/fields.h"
#include "optim/loss_scale.h"

namespace megatron::settings {

// Action after a step whose loss or gradients are not finite.
enum class OnNonFinite { stop, skip };

struct PrecisionSettings {
  bool bf16 = false, fp16 = false;
  optim::LossScaleSettings loss_scaling;
  bool check_for_nan_in_loss_and_grad = true;
  OnNonFinite on_non_finite = OnNonFinite::stop;

  void fields(Fields& fields);
  void check() const;  // throws Error naming the flag
  // Type of parameters and activations.
  DType type() const { return bf16 ? DType::bf16 : fp16 ? DType::f16 : DType::f32; }
  std::optional<optim::LossScaleSettings> loss_scale() const {  // for fp16
    return fp16 ? std::optional(loss_scaling) : std::nullopt;
  }
};

}  // namespace megatron::settings
