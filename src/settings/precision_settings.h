// Number formats of a run, and its reaction to values that are not finite.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "autograd/low_precision.h"
#include "base/dtype.h"
#include "base/fields.h"
#include "optim/loss_scale.h"

namespace megatron::settings {

// Action after a step whose loss or gradients are not finite.
enum class OnNonFinite { stop, skip };

struct PrecisionSettings {
  bool bf16 = false, fp16 = false;
  std::string fp8_format, fp4_format;  // "": none
  LowPrecisionRecipe fp8_recipe = LowPrecisionRecipe::delayed;
  bool fp8_weight_gradients = true, fp8_output = false;
  bool fp8_param_gather = false, fp4_param_gather = false;
  int64_t fp8_margin = 0, fp8_history = 1;
  std::string fp8_history_use = "most_recent";
  std::optional<int64_t> fp4_switch_to_bf16_at;
  std::string precision_file;  // "": none
  bool first_last_layers_bf16 = false;
  int64_t layers_at_start_in_bf16 = 1, layers_at_end_in_bf16 = 1;
  optim::LossScaleSettings loss_scaling;
  bool check_for_nan_in_loss_and_grad = true;
  OnNonFinite on_non_finite = OnNonFinite::stop;

  void fields(Fields& fields);
  void check() const;  // throws Error naming the flag
  // Type of parameters and activations.
  DType type() const { return bf16 ? DType::bf16 : fp16 ? DType::f16 : DType::f32; }
  // Returns how linear layers are quantized. Reads --te-precision-config-file if it is given, and
  // throws Error for invalid contents.
  std::optional<LowPrecisionLayers> low_precision() const;
  // The flag that asks for quantized products; "": none does.
  std::string_view low_precision_flag() const;
  std::optional<optim::LossScaleSettings> loss_scale() const {  // for fp16
    return fp16 ? std::optional(loss_scaling) : std::nullopt;
  }

 private:
  void low_precision_fields(Fields& fields);
  void check_low_precision() const;
};

}  // namespace megatron::settings
