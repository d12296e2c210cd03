#include "settings/precision_settings.h"

#include "base/error.h"

namespace megatron::settings {

void PrecisionSettings::fields(Fields& f) {
  f.begin_group("precision");
  f.add_switch(
       "bf16", &bf16, true,
       "parameters and activations in bfloat16, master weights and gradients in fp32; else fp32")
      .in_short_help();
  f.add_switch("fp16", &fp16, true,
               "parameters and activations in fp16, master weights in fp32, with a scaled loss; on "
               "CPU computed in fp32 and rounded")
      .in_short_help();
  f.add("loss-scale", &loss_scaling.constant,
        "constant loss scale with --fp16; 0, the default: dynamic");
  f.add("initial-loss-scale", &loss_scaling.initial, "initial dynamic loss scale");
  f.add("min-loss-scale", &loss_scaling.least, "minimum dynamic loss scale");
  f.add("loss-scale-window", &loss_scaling.window,
        "consecutive steps without overflow after which the dynamic loss scale doubles");
  f.add("hysteresis", &loss_scaling.hysteresis,
        "halve the dynamic loss scale from this many overflows on; the count is reset when the "
        "scale doubles");
  f.add_switch("no-check-for-nan-in-loss-and-grad", &check_for_nan_in_loss_and_grad, false,
               "update the weights even if the loss or a gradient is NaN or infinite");
  f.add_enum("on-non-finite", &on_non_finite,
             {{"stop", OnNonFinite::stop}, {"skip", OnNonFinite::skip}},
             "if a step's loss or gradients are NaN or infinite, its update is not applied: stop "
             "the run, or skip to the next step");
}

void PrecisionSettings::check() const {
  const optim::LossScaleSettings plain, &s = loss_scaling;
  const auto check = [&](std::string_view flag, auto value, auto usual, double least) {
    MG_CHECK(value == usual ||
                 (static_cast<double>(value) >= least && static_cast<double>(value) <= 0x1p64),
             "--{} is {}; it must be at least {} and at most 2^64", flag, value, least);
  };
  check("loss-scale", s.constant.value_or(0), 0.0, 0x1p-64);
  check("initial-loss-scale", s.initial, plain.initial, 0x1p-64);
  check("min-loss-scale", s.least, plain.least, 0x1p-64);
  check("loss-scale-window", s.window, plain.window, 1);
  check("hysteresis", s.hysteresis, plain.hysteresis, 1);
  MG_CHECK(
      s.initial >= s.least,
      "--initial-loss-scale is {} and --min-loss-scale {}: the initial scale cannot be below the "
      "minimum",
      s.initial, s.least);
}

}  // namespace megatron::settings
