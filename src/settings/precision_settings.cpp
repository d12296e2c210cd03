#include "settings/precision_settings.h"

#include <fmt/core.h>

#include "base/error.h"
#include "settings/precision_file.h"

namespace megatron::settings {

void PrecisionSettings::low_precision_fields(Fields& f) {
  const auto fp8 = [this] {
    return fp8_format.empty() ? std::string("--fp8-format is not given") : std::string();
  };
  const auto is_delayed = [this, fp8] {
    return fp8_format.empty() || fp8_recipe == LowPrecisionRecipe::delayed
               ? fp8()
               : fmt::format("--fp8-recipe is {}", megatron::name(fp8_recipe));
  };
  const auto any = [this] {
    return fp8_format.empty() && fp4_format.empty()
               ? "neither --fp8-format nor --fp4-format is given"
               : "";
  };
  const auto ends = [this] {
    return first_last_layers_bf16 ? "" : "--first-last-layers-bf16 is not given";
  };
  f.add("fp8-format", &fp8_format, {"e4m3", "hybrid"},
        "quantize the operands of linear layers' products to 8 bits: all in e4m3, or hybrid, with "
        "gradients in e5m2 (docs/low_precision.md)");
  std::vector<std::pair<std::string, LowPrecisionRecipe>> recipes;
  for (const auto recipe : {LowPrecisionRecipe::delayed, LowPrecisionRecipe::tensorwise,
                            LowPrecisionRecipe::blockwise, LowPrecisionRecipe::mxfp8})
    recipes.emplace_back(megatron::name(recipe), recipe);
  f.add_enum("fp8-recipe", &fp8_recipe, recipes,
             "scales of fp8: one per tensor, from the largest elements of earlier steps (delayed) "
             "or of the tensor (tensorwise); powers of two, per 128 x 128 elements of a weight and "
             "128 of other operands (blockwise), or per 32 elements (mxfp8)")
      .of(fp8);
  f.add("fp8-margin", &fp8_margin, "divide scales by 2 to this power")
      .within(-64, 64)
      .of(is_delayed);
  f.add("fp8-amax-history-len", &fp8_history, "number of steps whose largest elements are kept")
      .within(1, 1 << 16)
      .of(is_delayed);
  f.add("fp8-amax-compute-algo", &fp8_history_use, {"most_recent", "max"},
        "largest element that a scale follows from: that of the last step, or the largest of those "
        "kept")
      .of(is_delayed);
  for (const char* name : {"no-fp8-wgrad", "disable-fp8-wgrad"})
    f.add_switch(name, &fp8_weight_gradients, false,
                 "compute weight gradients from operands that are not quantized")
        .of(fp8);
  f.add_switch("fp8-output-proj", &fp8_output, true,
               "quantize the products of the output layer as well; for --fp8-recipe mxfp8")
      .of(fp8);
  f.add_switch("fp8-param-gather", &fp8_param_gather, true,
               "data-parallel ranks gather weights of fp8 products as 8-bit codes, half the bytes "
               "of bf16, with the same results; not for mxfp8 (docs/low_precision.md)")
      .of([this] {
        return fp8_format.empty() && precision_file.empty()
                   ? "neither --fp8-format nor --te-precision-config-file is given"
                   : "";
      });
  f.add("fp4-format", &fp4_format, {"e2m1"},
        "quantize the operands of linear layers' products to 4 bits, e2m1, with scales in e4m3 per "
        "16 x 16 weights and 16 others, and one per tensor (docs/low_precision.md)");
  f.add_switch(
       "fp4-param-gather", &fp4_param_gather, true,
       "data-parallel ranks gather weights of fp4 products as 4-bit codes, a quarter of the "
       "bytes of bf16, with the same results (docs/low_precision.md)")
      .of([this] {
        return fp4_format.empty() && precision_file.empty()
                   ? "neither --fp4-format nor --te-precision-config-file is given"
                   : "";
      });
  f.add("fp4-switch-to-bf16-at", &fp4_switch_to_bf16_at,
        "step from which products are computed in the type of the model")
      .of([this] {
        return low_precision_flag().empty()
                   ? "neither --fp8-format nor --fp4-format nor --te-precision-config-file is given"
                   : "";
      });
  f.add("te-precision-config-file", &precision_file,
        "YAML file with the precision of single modules, in the format of Megatron-LM "
        "(docs/low_precision.md)");
  f.add_switch("first-last-layers-bf16", &first_last_layers_bf16, true,
               "leave the first and the last layers in the type of the model")
      .of(any);
  f.add("num-layers-at-start-in-bf16", &layers_at_start_in_bf16,
        "number of first layers for --first-last-layers-bf16")
      .within(0, 1 << 20)
      .of(ends);
  f.add("num-layers-at-end-in-bf16", &layers_at_end_in_bf16,
        "number of last layers for --first-last-layers-bf16")
      .within(0, 1 << 20)
      .of(ends);
}

std::optional<LowPrecisionLayers> PrecisionSettings::low_precision() const {
  const bool of_all = !fp8_format.empty() || !fp4_format.empty();
  if (!of_all && precision_file.empty()) return {};
  LowPrecisionLayers layers{.by_rules_alone = !of_all};
  if (!precision_file.empty()) layers.rules = read_precision_rules(precision_file);
  LowPrecisionFormats& formats = layers.formats;
  if (!fp4_format.empty()) {
    formats.recipe = LowPrecisionRecipe::nvfp4;
    formats.forward = formats.gradient = LowFormat::e2m1;
  } else {
    formats.recipe = fp8_recipe;
    formats.gradient = fp8_format == "hybrid" ? LowFormat::e5m2 : LowFormat::e4m3;
    formats.weight_gradients = fp8_weight_gradients;
    formats.margin = static_cast<int>(fp8_margin);
    formats.history = fp8_history;
    layers.output = fp8_output && !fp8_format.empty();
    formats.most_of_history = fp8_history_use == "max";
  }
  if (first_last_layers_bf16) {
    layers.left_out_at_start = layers_at_start_in_bf16;
    layers.left_out_at_end = layers_at_end_in_bf16;
  }
  return layers;
}

std::string_view PrecisionSettings::low_precision_flag() const {
  if (!fp8_format.empty()) return "--fp8-format";
  if (!fp4_format.empty()) return "--fp4-format";
  return precision_file.empty() ? "" : "--te-precision-config-file";
}

void PrecisionSettings::check_low_precision() const {
  MG_CHECK(low_precision_flag().empty() || !fp16,
           "{} is not for --fp16, whose range is too small for its scales: use --bf16",
           low_precision_flag());
  MG_CHECK(
      !fp8_output || fp8_format.empty() || fp8_recipe == LowPrecisionRecipe::mxfp8,
      "--fp8-output-proj is for --fp8-recipe mxfp8, and the recipe is {}: the loss is computed "
      "by chunks of tokens and columns, which have scales of their own in mxfp8; leave it out",
      megatron::name(fp8_recipe));
  MG_CHECK(!fp4_switch_to_bf16_at || *fp4_switch_to_bf16_at > 0,
           "--fp4-switch-to-bf16-at is {}; it must be a step, at least 1", *fp4_switch_to_bf16_at);
}

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
  low_precision_fields(f);
  f.add("loss-scale", &loss_scaling.constant,
        "constant loss scale with --fp16; 0, the default: dynamic");
  f.add("initial-loss-scale", &loss_scaling.initial, "initial dynamic loss scale");
  f.add("min-loss-scale", &loss_scaling.least, "minimum dynamic loss scale");
  f.add("loss-scale-window", &loss_scaling.window,
        "consecutive steps without overflow after which the dynamic loss scale doubles");
  f.add("hysteresis", &loss_scaling.hysteresis,
        "halve the dynamic loss scale at this many overflows and at each later one; the "
        "count is reset when the "
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
  check_low_precision();
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
